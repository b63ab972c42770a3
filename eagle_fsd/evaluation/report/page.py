"""index.html: one file that needs nothing else. It opens with the answer: a sentence an arm, the
plot, one question's answers side by side, how far to trust it, one table; all else is folded.

Everything that comes from a run is untrusted text: escaped here, and put in by textContent in
page.js.
"""

import html
import json
import statistics
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from eagle_fsd.evaluation.curve_plot import INK
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import Table, main_table
from eagle_fsd.evaluation.tables import verdict

MOST_VERDICTS = 10  # in sight
# words of a verdict -> the metric that explains them on hover
GLOSSARY = {
    "tokens a round over exact": "tokens_per_round_vs_exact",
    "tokens a round": "tokens_per_round",
    "log p a token": "mean_logp_minus_plain",
    "times plain's tokens/s": "speed_vs_plain",
    "fuzzy": "fuzzy_share",
}


def build_page(
    runs: Sequence[RunData],
    rows: Sequence[list[dict]],
    tables: Sequence[list[Table]],
    plot: str,
    csv: str,
    answers: list[dict],
    *,
    notes: Sequence[str],
) -> str:
    """The page's text.

    Args:
        rows, tables: of each run, from summarize and run_tables.
        plot: SVG of the curves, or "".
        csv: of the rows of all runs, to download.
        answers: from pack_answers.
        notes: about the report itself.
    """
    pairs = list(zip(runs, rows, strict=True))
    package = files("eagle_fsd.evaluation.report")
    title = ", ".join(run.name for run in runs)
    return Template((package / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        subtitle=html.escape(_subjects(runs)),
        css=(package / "page.css").read_text(encoding="utf-8"),
        js=(package / "page.js").read_text(encoding="utf-8"),
        verdicts="\n".join(_named(runs, run, _verdicts(found)) for run, found in pairs),
        plot=_inline(plot),
        downloads=_downloads({"plot.svg": ("image/svg+xml", plot), "arms.csv": ("text/csv", csv)}),
        trust="\n".join(_named(runs, run, _trust(run)) for run in runs),
        main="\n".join(_named(runs, run, main_table(found).html()) for run, found in pairs),
        folded="\n".join(
            _named(runs, run, _folded(run, found)) for run, found in zip(runs, tables, strict=True)
        ),
        notes="".join(f'<p class="warning">{html.escape(note)}</p>' for note in notes),
        answers=script_json(answers),
    )


def script_json(value: object) -> str:
    """JSON that may stand in a script element: no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _named(runs: Sequence[RunData], run: RunData, text: str) -> str:
    """Under the run's name, where there are several."""
    return f"<h3>{html.escape(run.name)}</h3>\n{text}" if len(runs) > 1 else text


def _subjects(runs: Sequence[RunData]) -> str:
    """Target and temperatures of every run; once, if they are the same."""
    subjects = {}
    for run in runs:
        warm = sorted({f"{r['temperature']:g}" for rows in run.records.values() for r in rows})
        target = f"{run.options['target']} in {run.options['dtype']}"
        subjects[run.name] = f"{target}, temperature {' and '.join(warm)}"
    if len(set(subjects.values())) == 1:
        return subjects[runs[0].name]
    return "; ".join(f"{name}: {subject}" for name, subject in subjects.items())


def _verdicts(rows: list[dict]) -> str:
    items = []
    for row in rows:
        arm, _, said = verdict(row).partition(": ")
        said = html.escape(said, quote=False)
        for number, words in enumerate(GLOSSARY):  # not within one another
            said = said.replace(words, f"\0{number}\0")
        for number, (words, key) in enumerate(GLOSSARY.items()):
            meaning = html.escape(METRICS[key].meaning)
            said = said.replace(f"\0{number}\0", f'<abbr title="{meaning}">{words}</abbr>')
        items.append(f"<li><code>{html.escape(arm)}</code> {said}</li>")
    shown = f'<ul class="verdicts">{"".join(items[:MOST_VERDICTS])}</ul>'
    rest = "".join(items[MOST_VERDICTS:])
    words = f"{len(items) - MOST_VERDICTS} more arms"
    folded = f'<details><summary>{words}</summary><ul class="verdicts">{rest}</ul></details>'
    return shown + (folded if rest else "")


def _inline(plot: str) -> str:
    """The SVG element, in the page's own text colour."""
    return plot[plot.index("<svg") :].replace(INK, "currentColor") if plot else ""


def _downloads(contents: dict[str, tuple[str, str]]) -> str:
    links = []
    for name, (kind, text) in contents.items():
        data = b64encode(text.encode()).decode()
        link = f'<a download="{name}" href="data:{kind};base64,{data}">{name}</a>'
        links += [link] if text else []
    return "Download: " + ", ".join(links)


def _trust(run: RunData) -> str:
    said = [f"{run.questions} questions answered by {len(run.records)} arms"]
    commits = dict.fromkeys(str(session.get("commit")) for session in run.sessions)
    said.append(f"commit {' / '.join(commits)}")
    said += dict.fromkeys(str(session.get("device")) for session in run.sessions)
    spread = run.same_work() if run.timed else []
    if spread:
        count = "once" if len(spread) == 1 else f"{len(spread)} times"
        said.append(
            f"where arms made an answer by the same rounds, token for token ({count}), their "
            f"seconds differed by {100 * statistics.median(spread):.0f} % in the median, "
            f"{100 * max(spread):.0f} % at most: that is noise"
        )
    warnings = "".join(f'<p class="warning">{html.escape(text)}</p>' for text in run.warnings)
    return f'<p class="note">{html.escape("; ".join(said))}.</p>\n{warnings}'


def _folded(run: RunData, tables: list[Table]) -> str:
    made = json.dumps({"options": run.options, "sessions": run.sessions}, indent=1)
    told = f"<pre>{html.escape(str(run.folder))}\n{html.escape(made)}</pre>"
    made = f"<details><summary>How it was made</summary>{told}</details>"
    return "\n".join([*(table.folded() for table in tables), made])
