"""All findings as one HTML file that needs nothing else: no script, no font, no other host.

Measures nothing.
"""

import html
from collections.abc import Sequence

from octavo.bench.plot import plot_svg
from octavo.reproduce.finding import Figure, Finding, Table, number

_STYLE = """
:root{color-scheme:light dark;--line:#d8dee4;--soft:#57606a;--good:#1a7f37;--bad:#b42318;
--back:#fff;--text:#24292f;--band:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--line:#30363d;--soft:#9da7b1;--good:#56d364;--bad:#ff8a80;
--back:#0d1117;--text:#e6edf3;--band:#161b22}}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1.5rem 1rem 4rem;
background:var(--back);color:var(--text)}
h1{font-size:1.6rem;margin:0}h2{margin:3rem 0 .2rem;font-size:1.3rem}
h3{font-size:1rem;margin:1.4rem 0 .3rem}
.soft{color:var(--soft);margin:.2rem 0 1rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid var(--line);padding:.3rem .7rem;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{font-weight:600}
.reached{color:var(--good);font-weight:600}.missed{color:var(--bad);font-weight:600}
blockquote{margin:.6rem 0;padding:.4rem .9rem;border-left:3px solid var(--line);
background:var(--band)}
svg{max-width:100%;height:auto}details{margin:.6rem 0}summary{cursor:pointer}
"""


def html_report(findings: Sequence[Finding], failures: Sequence[tuple[str, str]] = ()) -> str:
    """The page. failures: claims that could not be measured, and why."""
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>Octavo: claims, measured</title><style>{_STYLE}</style></head><body>",
        "<h1>Claims of the literature, measured</h1>", _circumstances(findings),
        _summary(findings, failures)]
    parts += [_section(finding) for finding in findings]
    return "\n".join([*parts, "</body></html>\n"])


def _circumstances(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    facts = findings[0].facts
    shown = [f"{name}: {number(facts[name])}" for name in
             ("model", "cpu", "backend", "threads", "KV", "octavo", "measured at", "sizes")
             if facts.get(name) is not None]
    return f"<p class=soft>{_text('; '.join(shown))}</p>"


def _summary(findings: Sequence[Finding], failures: Sequence[tuple[str, str]]) -> str:
    rows = []
    for finding in findings:
        for figure in finding.figures:
            rows.append(f"<tr><td><a href='#{_text(finding.name)}'>{_text(finding.name)}</a></td>"
                        f"{_figure_cells(figure)}</tr>")
    rows += [f"<tr><td>{_text(name)}</td><td>not measured: {_text(why)}</td><td></td><td></td>"
             "<td></td></tr>" for name, why in failures]
    return ("<div class=scroll><table><thead><tr><th>claim</th><th>figure</th><th>measured</th>"
            f"<th>expected</th><th></th></tr></thead><tbody>{''.join(rows)}</tbody></table></div>")


def _figure_cells(figure: Figure) -> str:
    sign = ">=" if figure.at_least else "<="
    target = "" if figure.target is None else f"{sign} {number(figure.target)} {figure.unit}"
    reached = figure.is_reached
    verdict = "" if reached is None else (
        "<span class=reached>reached</span>" if reached else
        "<span class=missed>not reached</span>")
    return (f"<td>{_text(figure.what)}</td><td>{_text(f'{number(figure.value)} {figure.unit}')}"
            f"</td><td>{_text(target)}</td><td>{verdict}</td>")


def _section(finding: Finding) -> str:
    parts = [f"<h2 id='{_text(finding.name)}'>{_text(finding.name)}</h2>",
             f"<p class=soft>{_text(finding.title)}</p>",
             (f"<blockquote><b>Claimed.</b> {_text(finding.claimed)} "
              f"<span class=soft>({_text(finding.source)})</span></blockquote>"),
             f"<p><b>Measured here.</b> {_text(finding.explanation)}</p>"]
    if finding.identical_outputs is not None:
        parts.append("<p>Outputs of all arms: the same token ids.</p>" if finding.identical_outputs
                     else "<p class=missed>Outputs of the arms DIFFER.</p>")
    if finding.diagrams:
        parts.append(plot_svg(finding.diagrams))
    parts += [_table(table) for table in finding.tables]
    facts = "".join(f"<tr><td>{_text(name)}</td><td>{_text(number(value))}</td></tr>"
                    for name, value in finding.facts.items())
    parts.append("<details><summary>Settings and counters</summary><div class=scroll><table>"
                 f"<tbody>{facts}</tbody></table></div></details>")
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in table.headers)
    rows = "".join("<tr>" + "".join(f"<td>{_text(number(cell))}</td>" for cell in row) + "</tr>"
                   for row in table.rows)
    return (f"<h3>{_text(table.title)}</h3><div class=scroll><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{rows}</tbody></table></div>")


def _text(value: str) -> str:
    return html.escape(value.strip())
