"""What is made of a run's rows: the summary that a command leaves beside its records, and the
report on any number of runs, a folder of its own.

index.html      everything, in one file that needs nothing else
report.json     the tables' rows, for programs; its "made_by" marks the folder as a report
tables/*.csv    arms, by_category, equal_gain, scores
plot.svg        loss against gain, and plot_speed.svg against tokens per second

Everything that comes from a run is untrusted text: page.html escapes it, page.js puts it in by
textContent.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from eagle_fsd.cli import shown_command
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.plots import GAIN, INK, SPEED, caption, line_styles, plot_curves
from eagle_fsd.evaluation.report.answer_data import pack_answer, pack_answers
from eagle_fsd.evaluation.report.report_tables import NOTES, run_tables
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.evaluation.tables import cell_text, csv_text, markdown_table, terminal_table
from eagle_fsd.runs.folder import lock_folder
from eagle_fsd.runs.jsonl import read_json, write_file, write_json

REPORT = "report.json"
MADE_BY = "eagle_fsd report"  # in it: the folder is a report, and may be replaced
CSV = {title: title.lower().replace(" ", "_") for title in NOTES}  # names of tables
PLOTS = {GAIN: "plot", SPEED: "plot_speed"}  # names of plots
WRITTEN = [f"tables/{name}.csv" for name in CSV.values()]
WRITTEN += [f"{name}.svg" for name in PLOTS.values()]
WRITTEN += ["index.html"]
UNFOLDED = 10  # arms with a verdict in sight; one by the rule path always is
HERE = Path(__file__).parent


def report_bench(
    bench: Bench, *, scores: Sequence[dict] = (), extra: str = "", further: dict | None = None
) -> str:
    """Write summary.md, .json, .csv, .svg and by_category.csv; returns what the terminal shows.

    Args:
        scores: rows of task_scores.compare_scores.
        extra: a text below the tables.
        further: further entries of summary.json.
    """
    folder, settings = bench.run.folder, bench.run.settings
    run = RunData(bench.name, settings, bench.run.sessions, bench.records(), scores=[*scores])
    rows, doubts = run.rows, run.doubts()
    trees = {row["tree"] for row in rows if row["tree"]}
    title = (
        f"{bench.name}, {len(bench.questions)} questions, {run.subject}, trees "
        f"{', '.join(sorted(trees)) or 'none'}, {settings['max_new_tokens']} new tokens; "
        f"{run.origin('device')}, commit {run.origin('commit')}"
    )
    whole = {"title": title, "options": settings, "sessions": run.sessions, "notes": doubts}
    whole |= {"rows": rows, "by_category": run.categories, **(further or {})}
    write_json(folder / "summary.json", whole)
    write_file(folder / "summary.csv", csv_text(rows))
    write_file(folder / "by_category.csv", csv_text(run.categories))
    svg = plot_curves(rows)
    if svg:
        write_file(folder / "summary.svg", svg)
    verdicts = "\n".join(f"- {row['arm']}: {run.verdict(row)}" for row in rows)
    notes = [f"Note: {note}." for note in [*doubts, run.noise_note()] if note]
    sections = {
        name: f"### {name}\n\n{table.note}\n\n{markdown_table(table.rows, table.columns)}"
        for name, table in run_tables(run).items()
    }
    plot = "![loss against gain](summary.svg)" if svg else ""
    text = [title, verdicts, plot, caption(rows), *sections.values(), extra, *notes]
    write_file(folder / "summary.md", "\n\n".join(filter(None, text)) + "\n")
    page = shown_command("report.py", folder, "--output", f"{folder}_report")
    rest = (
        f"All columns, with intervals, are in {folder}: summary.md, summary.json and summary.csv; "
        f"the plot is summary.svg.\nThe report's page is made by: {page}"
    )
    shown = [title, sections.get("Scores"), terminal_table(rows), verdicts, extra, *notes, rest]
    return "\n" + "\n\n".join(filter(None, shown))


def write_report(runs: list[RunData], output: Path) -> list[str]:
    """Write the report in place of an old one, of which nothing stays. What a report does not write
    stays, and a link goes itself, not what it leads to.

    Returns:
        All warnings.

    Raises:
        BadInput: arms that cannot be compared; see check_output; the output cannot be written, as
            where another command writes there.
    """
    check_output(output)
    parts = [(run, run_tables(run)) for run in runs]
    drawn, csv_rows = [], {}
    for run, tables in parts:
        lead = f"{run.name}: " if len(runs) > 1 else ""  # runs are lines of their own
        for row in run.rows:
            drawn.append(row | {"run": run.name})
            drawn[-1] |= {key: lead + row[key] for key in ("arm", "line")}
        for title, table in tables.items():
            if title == "Arms" or table.rows is not run.rows:
                named = [{"run": run.name} | row for row in table.rows]
                csv_rows.setdefault(CSV[title], []).extend(named)
    warnings = [f"{run.name}: {text}" for run in runs for text in run.doubts()]
    sources = [{"name": run.name, "options": run.options, "sessions": run.sessions} for run in runs]
    files = {f"tables/{name}.csv": csv_text(rows) for name, rows in csv_rows.items()}
    downloads = {"arms.csv": ("text/csv", files["tables/arms.csv"])}
    figures = {}
    for across, name in PLOTS.items():
        svg = plot_curves(drawn, across=across)
        if svg:
            files[f"{name}.svg"] = svg
        downloads[f"{name}.svg"] = "image/svg+xml", svg
        svg = svg[svg.find("<svg") :].replace(INK, "currentColor")
        figures[across] = svg, caption(drawn, across=across)
    files["index.html"] = render_page(
        title=", ".join(run.name for run in runs),
        subject="; ".join(dict.fromkeys(run.subject for run in runs)),
        parts=parts,
        plots=figures,
        colors={line: style["color"] for line, style in line_styles(drawn).items()},
        downloads=downloads,
        answers=[pack_answers(run) for run in runs],
    )
    with lock_folder(output):
        if (output / "tables").is_symlink():
            (output / "tables").unlink()
        whole = {"made_by": MADE_BY, "runs": sources, "warnings": warnings, "tables": csv_rows}
        write_json(output / REPORT, whole)  # first: a kill behind it leaves a report
        for name in WRITTEN:
            if name in files:
                write_file(output / name, files[name])
            else:
                (output / name).unlink(missing_ok=True)
    return warnings


def check_output(output: Path) -> None:
    """Refuse, before anything is changed, a file, a folder that holds something else than a report,
    and one in which something of somebody else's bears a name of a report; a link may, since it is
    replaced and what it leads to is not."""
    empty = os.path.isdir(output) and not any(output.glob("[!.]*"))
    if os.path.exists(output) and not empty and not is_report(output):
        raise BadInput(
            f"--output {output} is something else than a report (or a report of an older version: "
            "delete it): name another folder"
        )
    tables = output / "tables"
    if tables.exists() and not tables.is_dir() and not tables.is_symlink():
        raise BadInput(f"{tables} is a file: a report has a folder there; name another --output")
    for place in (output / name for name in WRITTEN):
        is_replaced = place.is_symlink() or (place.parent == tables and tables.is_symlink())
        if place.is_dir() and not is_replaced:
            raise BadInput(f"{place} is a folder: a report has a file there; name another --output")


def is_report(folder: Path) -> bool:
    """Whether write_report has made it, by what its report.json says; a link tells of another."""
    if (folder / REPORT).is_symlink():
        return False
    try:
        return read_json(folder / REPORT, made_by=str) == [MADE_BY]
    except BadInput:
        return False


def answer_page(
    trace: dict,
    texts: Sequence[str],
    *,
    thought: int,
    prompt: str,
    arm: str,
    greedy: bool,
    subject: str,
) -> str:
    """A page of one answer alone, with the tree of each of its rounds.

    Args:
        trace: the answer's, as traces.TurnTrace takes it down.
        texts: of its tokens, which join to the answer's text.
        thought: how many characters of that are thought.
        greedy: whether the answer was made at temperature 0.
        subject: a sentence under the title, such as whose answer this is and what it cost.
    """
    answers = [pack_answer(trace, texts, thought=thought, prompt=prompt, arm=arm, greedy=greedy)]
    title = "Draft trees of an answer"
    return render_page(
        title=title, subject=subject, parts=[], plots={}, downloads={}, answers=answers
    )


def render_page(**values: object) -> str:
    page = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    page.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    page.globals |= {"metrics": METRICS, "cell_text": cell_text}
    page.globals |= {"unfolded": UNFOLDED, "gain": GAIN}
    css, js = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return page.get_template("page.html").render(css=css, js=js, **values)
