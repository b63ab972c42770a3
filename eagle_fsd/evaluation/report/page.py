"""index.html: one file that needs nothing else, from the tables, pictures and traces.

Everything that comes from a run is untrusted text: escaped here, and put in by textContent in
page.js.
"""

import base64
import html
import json
import time
from importlib.resources import files
from pathlib import Path
from string import Template

from eagle_fsd.evaluation.report.plots import Picture
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import Table


def build_page(
    runs: list[RunData],
    tables: list[Table],
    pictures: list[Picture],
    folder: Path,
    traces: dict[str, list],
    *,
    notes: list[str],
) -> str:
    """The page's text.

    Args:
        folder: where the pictures' PNGs are.
        traces: from pack_traces.
        notes: warnings about the report itself.
    """
    sections = [f'<p class="warning">{html.escape(note)}</p>' for note in notes]
    contents = []
    for number, run in enumerate(runs):
        contents.append((f"run-{number}", run.name))
        mine = [table.html() for table in tables if table.run == run.name]
        sections.append(
            f'<section id="run-{number}">\n<h2>{html.escape(run.name)}</h2>\n{_origin(run)}\n'
            + "\n".join(mine)
            + "\n</section>"
        )
    contents.append(("pictures", "pictures"))
    common = [table.html() for table in tables if not table.run]
    drawn = [_figure(picture, folder) for picture in pictures]
    sections.append(
        '<section id="pictures">\n<h2>Pictures</h2>\n' + "\n".join(drawn + common) + "\n</section>"
    )
    if traces["traces"]:
        contents.append(("traces", "token by token"))
    package = files("eagle_fsd.evaluation.report")
    return Template((package / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape("Report: " + ", ".join(run.name for run in runs)),
        css=(package / "page.css").read_text(encoding="utf-8"),
        js=(package / "page.js").read_text(encoding="utf-8"),
        contents=" ".join(f'<a href="#{key}">{html.escape(name)}</a>' for key, name in contents),
        sections="\n".join(sections),
        traces=script_json(traces),
    )


def script_json(value: object) -> str:
    """JSON that may stand in a script element: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def origin(run: RunData) -> list[tuple[str, str]]:
    """Where a run comes from: (what, words)."""
    options = run.options
    entries = [
        ("folder", str(run.folder)),
        ("questions", f"{run.questions} by {len(run.records)} arms"),
        ("target", f"{options['target']} in {options['dtype']}"),
        ("options", ", ".join(f"{key} {_words(value)}" for key, value in options.items())),
    ]
    for session in run.sessions:
        started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(session["started"]))
        versions = ", ".join(f"{name} {number}" for name, number in session["versions"].items())
        words = f"{started}; {session['device']}; commit {session['commit']}; "
        words += f"{session.get('processes', 1)} process(es); {versions}; {session['command']}"
        entries.append((f"session {session['session']}", words))
    return entries


def _words(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "-" if value in ("", None) else str(value)


def _origin(run: RunData) -> str:
    told = [f'<p class="warning">{html.escape(text)}</p>' for text in run.warnings]
    entries = "".join(
        f"<dt>{html.escape(what)}</dt><dd>{html.escape(words)}</dd>" for what, words in origin(run)
    )
    summary = f"{run.questions} questions, {run.options['target']} in {run.options['dtype']}"
    summary += ": how it was made"
    return "\n".join(told) + (
        f"\n<details><summary>{html.escape(summary)}</summary><dl>{entries}</dl></details>"
    )


def _figure(picture: Picture, folder: Path) -> str:
    data = base64.b64encode((folder / f"{picture.name}.png").read_bytes()).decode()
    title = html.escape(picture.title)
    return (
        f'<h3>{title}</h3>\n<p class="note">{html.escape(picture.note)}</p>\n'
        f'<figure><img alt="{title}" src="data:image/png;base64,{data}"></figure>'
    )
