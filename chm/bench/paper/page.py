# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file: pictures inside it, nothing fetched, light and dark, any width."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import chm
from chm.bench.paper.claim import number
from chm.bench.paper.figure import Settings
from chm.bench.paper.study import Result
from chm.bench.paper.table import HEAD, cells

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --met: #1a7f37; --missed: #c9252d;
  --shape: #1b7c9c; }
@media (prefers-color-scheme: dark) {
  :root { --met: #57c773; --missed: #ff7b80; --shape: #5cc3e6; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
img { width: 100%; max-width: 62rem; height: auto; background: #fff; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
code { font-size: .85rem; overflow-wrap: anywhere; }
.met { color: var(--met); } .missed { color: var(--missed); font-weight: 600; }
.shape { color: var(--shape); } .reported { opacity: .7; }
p.reason { border-left: 4px solid var(--missed); background: var(--soft); padding: .4rem .8rem; }
details { margin: .5rem 0; } summary { cursor: pointer; }
"""


def _esc(text: Any) -> str:
    return html.escape(str(text))


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    top = "".join(f"<th>{_esc(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _verdict(word: str) -> str:
    return f'<span class="{word.split()[0]}">{_esc(word)}</span>'


def _cell(value: Any) -> str:
    if isinstance(value, bool | int | float) or value is None:
        return _esc(number(value, ""))
    if isinstance(value, Mapping):
        return _esc(", ".join(f"{k}={v}" for k, v in value.items()) or "-")
    return _esc(value)


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    head = list(dict.fromkeys(key for row in rows for key in row))
    return _table(head, [[_cell(row.get(key)) for key in head] for row in rows])


def _section(result: Result, picture: bytes | None) -> str:
    f = result.figure
    out = [f'<section id="{f.name}"><h2>{f.name}: {_esc(f.title)}</h2>']
    if result.error:
        out.append(f'<p class="reason">could not be measured: {_esc(result.error)}</p>')
    out.append(_table(HEAD[1:], [_claim_row(cells(line)) for line in result.lines]))
    for line in result.lines:
        if line.reason:
            out.append(f'<p class="reason">{_esc(line.claim.what)}: {_esc(line.reason)}</p>')
    if picture:
        data = base64.b64encode(picture).decode()
        out.append(f'<img alt="{_esc(f.title)}" src="data:image/png;base64,{data}">')
    out.append(f"<p><b>Calibrated:</b> {_esc(f.calibrated)}<br>")
    out.append(f"<b>Predicted:</b> {_esc(f.predicted)}</p>")
    out += [f"<p>{_esc(note)}</p>" for note in result.finding.notes]
    out.append(_folded("What was published, and where", _sources(result)))
    if result.finding.rows:
        out.append(_folded("Everything measured", _rows(result.finding.rows)))
    if result.runs:
        out.append(_folded("Runs: preset, structure, seed, digest", _rows(result.runs)))
    return "\n".join([*out, "</section>"])


def _claim_row(texts: Sequence[str]) -> list[str]:
    return [*(_esc(text) for text in texts[:-1]), _verdict(texts[-1])]


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{_esc(title)}</summary>{inside}</details>"


def _sources(result: Result) -> str:
    rows = [
        [_esc(line.claim.what), _esc(line.claim.grade), _esc(line.claim.source)]
        for line in result.lines
    ]
    return _table(("what", "grade", "source"), rows)


def _summary(results: Sequence[Result]) -> str:
    return _table(
        ("figure", "what it shows", "verdict"),
        [
            [
                f'<a href="#{r.figure.name}">{r.figure.name}</a>',
                _esc(r.figure.title),
                _verdict(r.verdict.value),
            ]
            for r in results
        ],
    )


def page(results: Sequence[Result], pictures: Mapping[str, bytes], settings: Settings) -> str:
    """The whole file."""
    sets = "".join(f", {k}={v} set by hand" for k, v in settings.sets)
    quick = ", quick (smaller runs)" if settings.quick else ""
    what = f"chm {chm.__version__}, seed {settings.seed}{quick}{sets}. All times are virtual."
    sections = "\n".join(_section(r, pictures.get(r.figure.name)) for r in results)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>chm: published figures and ours</title><style>{_STYLE}</style></head>
<body><h1>Published figures and ours</h1><p>{_esc(what)}</p>
<p>Grades of sources: A read in the primary artifact, B two secondary texts agree, C one secondary
text, D derived by arithmetic. A value without a tolerance is reported, not judged.</p>
{_summary(results)}
{sections}
</body></html>
"""
