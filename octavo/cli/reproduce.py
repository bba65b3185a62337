"""`octavo reproduce NAME`: a headline claim of the literature, measured on this machine."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.flags import DEFAULT_MODEL, Commands, count
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    from octavo.reproduce.claim import Options

_REPORT = "report"
_DEFAULT_OUT = Path("octavo-reproduce")


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "reproduce", help="measure a claim of the literature on this machine",
        description="Measures a claim against an honest baseline on the same kernels, prints what "
                    "was claimed and what was measured, and writes NAME.json and NAME.svg. "
                    "Without a name: lists the claims.")
    parser.set_defaults(run=run)
    parser.add_argument("name", nargs="?", metavar="NAME",
                        help=f"the claim; {_REPORT}: all of them, as one HTML page")
    parser.add_argument("-m", "--model", default=DEFAULT_MODEL, metavar="MODEL",
                        help="GGUF file, Hugging Face folder, alias or hub repo id "
                        "(default %(default)s)")
    parser.add_argument("--out", type=Path, default=_DEFAULT_OUT, metavar="DIR",
                        help="folder of the files (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the JSON into FILE, too")
    parser.add_argument("--quick", action="store_true",
                        help="small sizes, well under a minute: to see that it runs")
    parser.add_argument("--trace", type=Path, metavar="FILE",
                        help="request lengths from a trace: Azure LLM inference CSV or Mooncake "
                        "JSON lines")
    parser.add_argument("--data", type=Path, metavar="FILE", help="a claim's own input file")
    parser.add_argument("--url", metavar="URL",
                        help="an OpenAI-compatible server, for claims that can measure one")
    parser.add_argument("--threads", "--num-threads", dest="num_threads", type=count, metavar="N",
                        help="compute threads (default: physical cores this process may use)")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="of every random choice (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Status 0 also where the target was not reached: that is a result, not an error."""
    from octavo.reproduce.claim import Options
    from octavo.reproduce.claims import CLAIMS, claim_named
    from octavo.reproduce.output import (
        check_writable,
        list_claims,
        print_finding,
        run_claim,
        write_finding,
    )

    if args.name is None:
        list_claims(CLAIMS)
        print(f"\n`octavo reproduce {_REPORT}` measures them all and writes one HTML page.")
        return 0
    options = Options(model=args.model, quick=args.quick, num_threads=args.num_threads,
                      trace=args.trace, data=args.data, url=args.url, seed=args.seed)
    if args.name == _REPORT:
        return _report(args, options)
    claim = claim_named(args.name, others=(_REPORT,))
    check_writable(folder=args.out, json_file=args.json)
    finding = run_claim(claim, options)
    print_finding(finding)
    for path in write_finding(finding, folder=args.out, json_file=args.json):
        print(f"wrote {path}")
    return 0


def _report(args: argparse.Namespace, options: "Options") -> int:
    """Every claim in turn. Status 1 where one could not be measured; the others are there."""
    from octavo.reproduce.claims import CLAIMS
    from octavo.reproduce.output import check_writable, print_finding, run_claim, write_finding
    from octavo.reproduce.report import html_report

    if args.json is not None:
        raise ConfigError(f"json is {str(args.json)!r}: {_REPORT} writes a JSON file for each "
                          "claim into --out, leave it out", param="json")
    for name in ("trace", "data", "url"):
        if getattr(args, name) is not None and not any(name in c.takes for c in CLAIMS.values()):
            raise ConfigError(f"{name}: no claim has a use for it", param=name)
    check_writable(folder=args.out, json_file=None)
    for claim in CLAIMS.values():  # all of them before minutes are spent on the first
        claim.check(claim.taken(options))
    findings, failures = [], []
    for claim in CLAIMS.values():
        try:
            finding = run_claim(claim, claim.taken(options))
        except OctavoError as error:
            failures.append((claim.name, str(error)))
            print(f"{claim.name}: not measured: {error}", file=sys.stderr)
            continue
        findings.append(finding)
        print_finding(finding)
        print()
        write_finding(finding, folder=args.out, json_file=None)
        # after each: what is measured is kept whatever comes
        (args.out / "report.html").write_text(html_report(findings, failures), encoding="utf-8")
    print(f"wrote {args.out / 'report.html'}")
    return int(bool(failures))
