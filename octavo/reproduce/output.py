"""A claim run for people: progress bar, tables in the terminal, JSON and SVG files.

The only file here that prints.
"""

import dataclasses
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from octavo import __version__
from octavo.bench.plot import plot_svg
from octavo.bench.stats import load_average
from octavo.engine.interrupts import interrupts_between_steps
from octavo.errors import ConfigError
from octavo.reproduce.claim import Claim, NoProgress, Options
from octavo.reproduce.claim import Progress as ClaimProgress
from octavo.reproduce.disturbance import CoreWatch, disturbance
from octavo.reproduce.finding import Cell, Figure, Finding, Table, number

# a file or a pipe: columns are not folded
_PIPE_WIDTH = 120
_SHOWN_FACTS = ("model", "backend", "threads", "KV", "sizes", "lengths", "seconds",
                "load average before", "cores taken by others")


def run_claim(claim: Claim, options: Options) -> Finding:
    """Measures, with a progress bar where stderr is a terminal, else a line for each stage. Ctrl-C
    ends it between two steps with KeyboardInterrupt. Raises OctavoError. The finding's facts tell
    the circumstances, too, and its explanation whether others disturbed the run."""
    claim.check(options)
    started, load = time.monotonic(), load_average()
    watch = CoreWatch()
    with interrupts_between_steps() as check, _progress(claim.name, check) as progress:
        found = claim.run(options, progress)
    # a server that was asked is one of the others, and means no harm
    taken = None if options.url is not None else watch.taken_by_others()
    before = None if load is None or watch.has_own_load else load[0]
    warning = disturbance(taken=taken, load=before)
    circumstances: dict[str, Cell] = {
        "octavo": __version__, "seed": options.seed,
        "sizes": "quick: the figures say little" if options.quick else "full",
        "measured at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started, 1),
        "load average before": None if load is None else round(load[0], 1),
        "cores taken by others": None if taken is None else round(taken, 2)}
    return dataclasses.replace(
        found, facts=found.facts | circumstances,
        explanation=f"{found.explanation} {warning}" if warning else found.explanation)


def print_finding(finding: Finding) -> None:
    """On standard output."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PIPE_WIDTH)
    console.print(f"[bold]{escape(finding.name)}: {escape(finding.title)}[/bold]", highlight=False)
    facts = [f"{name} {number(finding.facts[name])}" for name in _SHOWN_FACTS
             if finding.facts.get(name) is not None]
    console.print(escape("; ".join(facts)), highlight=False)
    for table in finding.tables:
        console.print(_rich_table(table))
    verdicts = Table("measured", ["figure", "value", "expected", ""],
                     [[f.what, f"{number(f.value)} {f.unit}".strip(), _target(f), _verdict(f)]
                      for f in finding.figures])
    console.print(_rich_table(verdicts, text_columns=(0, 3)))
    if finding.identical_outputs is not None:
        same = "the same token ids" if finding.identical_outputs else "DIFFERENT TOKEN IDS"
        console.print(f"Outputs of all arms: {same}.", highlight=False)
    for label, text in (("Claimed", f"{finding.claimed} ({finding.source})"),
                        ("Why", finding.explanation)):
        console.print(f"[bold]{label}:[/bold] {escape(text)}", highlight=False)


def check_writable(*, folder: Path | None, json_file: Path | None) -> None:
    """Raises ConfigError, before minutes are spent, where write_finding could not write. Makes
    nothing: a run that is broken off leaves no empty folder."""
    if folder is not None:
        existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        _refuse("out", folder, _problem_of(existing))
    if json_file is not None:
        parent = json_file.parent
        _refuse("json", json_file, "is a folder" if json_file.is_dir()
                else _problem_of(parent) if parent.exists()
                else f"there is no folder {str(parent)!r}")


def _problem_of(folder: Path) -> str | None:
    if not folder.is_dir():
        return f"{str(folder)!r} is no folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{str(folder)!r} is not writable"


def _refuse(name: str, path: Path, problem: str | None) -> None:
    if problem is not None:
        raise ConfigError(f"{name} is {str(path)!r}: {problem}; give another place", param=name)


def write_finding(finding: Finding, *, folder: Path | None, json_file: Path | None) -> list[Path]:
    """NAME.json and NAME.svg in the folder, which is made where it is missing, and the JSON into
    json_file; returns what was written. Raises ConfigError."""
    text = json.dumps(finding.to_json(), indent=1, allow_nan=False) + "\n"
    contents: dict[Path, str] = {}
    if folder is not None:
        contents[folder / f"{finding.name}.json"] = text
        contents[folder / f"{finding.name}.svg"] = plot_svg(finding.diagrams)
    if json_file is not None:
        contents[json_file] = text
    for path, content in contents.items():
        try:
            if path.parent == folder:
                folder.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror or error}",
                              param="out") from None
    return list(contents)


def list_claims(claims: dict[str, Claim]) -> None:
    """A line each."""
    width = max(map(len, claims))
    for claim in claims.values():
        print(f"{claim.name:{width}}  {claim.title}")


def _target(figure: Figure) -> str:
    if figure.target is None:
        return "-"
    return f"{'>=' if figure.at_least else '<='} {number(figure.target)} {figure.unit}".strip()


def _verdict(figure: Figure) -> str:
    reached = figure.is_reached
    return "" if reached is None else "reached" if reached else "not reached"


def _rich_table(table: Table, text_columns: tuple[int, ...] = (0,)) -> RichTable:
    made = RichTable(title=escape(table.title), title_justify="left")
    for index, header in enumerate(table.headers):
        made.add_column(escape(header), justify="left" if index in text_columns else "right")
    for row in table.rows:
        made.add_row(*(escape(number(cell)) for cell in row))
    return made


class _Watched(NoProgress):
    """Ctrl-C alone."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def check(self) -> None:
        self._check()


class _Lines(_Watched):
    """A line on standard error for each stage: for files, pipes and logs."""

    def __init__(self, check: Callable[[], None], name: str) -> None:
        super().__init__(check)
        self._name = name

    def stage(self, what: str, share: float) -> None:
        print(f"{self._name}: {what} ({share:.0%} done)", file=sys.stderr, flush=True)


class _Bar(_Watched):
    """A bar on a terminal."""

    def __init__(self, check: Callable[[], None], bar: Progress, name: str) -> None:
        super().__init__(check)
        self._bar = bar
        self._task = bar.add_task(name, total=1.0, what="")

    def stage(self, what: str, share: float) -> None:
        self._bar.update(self._task, completed=share, what=what)

    def advance(self, share: float) -> None:
        self._bar.update(self._task, completed=share)


@contextmanager
def _progress(name: str, check: Callable[[], None]) -> Iterator[ClaimProgress]:
    if not sys.stderr.isatty():
        yield _Lines(check, name)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
               TimeElapsedColumn(), TextColumn("{task.fields[what]}"))
    # the bar is drawn by a thread of its own: twice a second costs the engine nothing to speak of
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2,
                  transient=True) as bar:
        yield _Bar(check, bar, name)
