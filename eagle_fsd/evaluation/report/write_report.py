"""The report's folder.

index.html      everything, in one file that needs nothing else
report.json     the tables' rows, for programs; its "made_by" marks the folder as a report
tables/*.csv    arms, by_category, equal_speed, scores, pairwise
plot.svg, .pdf  loss against gain, and plot_speed.svg, .pdf against tokens per second

Everything that comes from a run is untrusted text: page.html escapes it, page.js puts it in by
textContent.
"""

import os
import shutil
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.plots import GAIN, INK, SPEED, caption, line_styles, plot_curves
from eagle_fsd.evaluation.report.answer_data import pack_answer, pack_answers
from eagle_fsd.evaluation.report.report_tables import NOTES, Table, note_of, run_tables
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.evaluation.tables import cell_text, verdict, write_csv
from eagle_fsd.runs.folder import lock_folder
from eagle_fsd.runs.jsonl import read_json, write_file, write_json

REPORT = "report.json"
MADE_BY = "eagle_fsd report"  # in it: the folder is a report, and may be replaced
UNFINISHED = ".unfinished"  # where a report is written until it is whole
CSV = {title: title.lower().replace(" ", "_") for title in NOTES}  # names of tables
PLOTS = {GAIN: "plot", SPEED: "plot_speed"}  # names of plots
WRITTEN = ("index.html", *(f"{n}.{f}" for n in PLOTS.values() for f in ("svg", "pdf")))
WRITTEN += tuple(f"tables/{name}.csv" for name in CSV.values())
UNFOLDED = 10  # arms with a verdict in sight; one by the rule path always is
HERE = Path(__file__).parent


def write_report(runs: list[RunData], output: Path) -> list[str]:
    """Write the report in place of an old one, which stays as it is until the new one is whole.

    Returns:
        All warnings.

    Raises:
        BadInput: arms that cannot be compared; the output is a file, holds something else than a
            report, or cannot be written, as where another command writes there.
    """
    empty = os.path.isdir(output) and not any(output.glob("[!.]*"))
    if os.path.exists(output) and not empty and not is_report(output):
        raise BadInput(
            f"--output {output} is something else than a report (or a report of an older version: "
            "delete it): name another folder"
        )
    check_places(output)
    parts = [(run, run_tables(run)) for run in runs]
    answers = [pack_answers(run) for run in runs]
    drawn, csvs = [], {}
    for run, tables in parts:
        lead = f"{run.name}: " if len(runs) > 1 else ""  # runs are lines of their own
        place = {"run": run.name}
        drawn += [
            row | place | {key: lead + row[key] for key in ("arm", "line")} for row in run.rows
        ]
        for title, (_, rows) in tables.items():
            if title == "Arms" or rows is not run.rows:
                csvs.setdefault(CSV[title], []).extend({"run": run.name} | row for row in rows)
    warnings = [f"{run.name}: {text}" for run in runs for text in run.doubts()]
    made = [{"name": run.name, "options": run.options, "sessions": run.sessions} for run in runs]
    with lock_folder(output):
        new = output / UNFINISHED
        remove(new)  # a killed one's
        whole = {"made_by": MADE_BY, "runs": made, "warnings": warnings, "tables": csvs}
        write_json(new / REPORT, whole)
        for name, rows in csvs.items():
            write_csv(new / "tables" / f"{name}.csv", rows)
        plots = {
            across: (plot_curves(drawn, new / name, across=across), caption(drawn, across=across))
            for across, name in PLOTS.items()
        }
        csv = (new / "tables" / "arms.csv").read_text(encoding="utf-8")
        write_file(new / "index.html", page_of(parts, answers, drawn, plots=plots, csv=csv))
        try:
            put_in_place(new, output)
        except OSError as error:  # as where the old one's files may not be removed
            raise BadInput(
                f"cannot write to the folder {output} ({error}): name another folder"
            ) from error
    return warnings


def is_report(folder: Path) -> bool:
    """Whether write_report has made it, by what its report.json says; a link tells of another."""
    if (folder / REPORT).is_symlink():
        return False
    try:
        return read_json(folder / REPORT, made_by=str) == [MADE_BY]
    except BadInput:
        return False


def check_places(output: Path) -> None:
    """Refuse, before anything is changed, a folder in which something of somebody else's bears a
    name of a report; a link may, since it is replaced and what it leads to is not."""
    tables = output / "tables"
    if tables.exists() and not tables.is_dir() and not tables.is_symlink():
        raise BadInput(f"{tables} is a file: a report has a folder there; name another --output")
    for place in (output / name for name in WRITTEN):
        goes = place.is_symlink() or (place.parent == tables and tables.is_symlink())
        if place.is_dir() and not goes:
            raise BadInput(f"{place} is a folder: a report has a file there; name another --output")


def put_in_place(new: Path, output: Path) -> None:
    """Move a whole report into the folder of an old one, of which nothing stays. What a report does
    not write stays, and a link goes itself, not what it leads to."""
    (new / REPORT).replace(output / REPORT)  # first: a kill behind it leaves a report
    if (output / "tables").is_symlink():
        (output / "tables").unlink()
    (output / "tables").mkdir(exist_ok=True)
    for name in WRITTEN:
        if (new / name).is_file():
            (new / name).replace(output / name)
        else:
            (output / name).unlink(missing_ok=True)
    shutil.rmtree(new)


def remove(folder: Path) -> None:
    """A folder that may not be there; of a link only itself."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def page_of(
    parts: list[tuple[RunData, dict[str, Table]]],
    answers: list[dict],
    drawn: list[dict],
    *,
    plots: dict[str, tuple[str, str]],
    csv: str,
) -> str:
    """index.html, of runs with their tables, their answers, the rows of the plots, the plots' SVGs
    ("" for none) with their captions, and the arms as CSV."""
    svgs = {f"{PLOTS[across]}.svg": svg for across, (svg, _) in plots.items()}
    shown = {
        across: (svg[svg.find("<svg") :].replace(INK, "currentColor"), words)
        for across, (svg, words) in plots.items()
    }
    return render_page(
        title=", ".join(run.name for run, _ in parts),
        subject="; ".join(dict.fromkeys(run.subject for run, _ in parts)),
        parts=parts,
        plots=shown,
        colors={line: style["color"] for line, style in line_styles(drawn).items()},
        downloads={name: ("image/svg+xml", svg) for name, svg in svgs.items()}
        | {"arms.csv": ("text/csv", csv)},
        answers=answers,
    )


def answer_page(trace: dict, *, prompt: str, arm: str, greedy: bool, subject: str) -> str:
    """A page of one answer alone, with the tree of each of its rounds.

    Args:
        trace: the answer's, as traces.TurnTrace takes it down.
        greedy: whether the answer was made at temperature 0.
        subject: a sentence under the title, such as whose answer this is and what it cost.
    """
    answers = [pack_answer(trace, prompt=prompt, arm=arm, greedy=greedy)]
    title = "Draft trees of an answer"
    return render_page(
        title=title, subject=subject, parts=[], plots={}, downloads={}, answers=answers
    )


def render_page(**values: object) -> str:
    page = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    page.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    page.globals |= {"metrics": METRICS, "note_of": note_of, "cell_text": cell_text}
    page.globals |= {"verdict": verdict, "unfolded": UNFOLDED, "gain": GAIN}
    css, js = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return page.get_template("page.html").render(css=css, js=js, **values)
