"""The report's folder.

index.html      everything, in one file that needs nothing else
report.json     the tables' rows, for programs; by what it says the folder is known for a report
tables/*.csv    arms, by_category, equal_speed, scores, pairwise
plot.svg, .pdf  loss against gain

Everything that comes from a run is untrusted text: page.html escapes it, page.js puts it in by
textContent.
"""

import os
import shutil
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import INK, plot_curves
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.report.report_tables import NOTES, Table, run_tables
from eagle_fsd.evaluation.report.run_data import RunData
from eagle_fsd.evaluation.tables import cell_text, verdict, write_csv
from eagle_fsd.runs.folder import answer_key, lock_folder
from eagle_fsd.runs.jsonl import read_json, write_file, write_json

REPORT = "report.json"
MADE_BY = "eagle_fsd report"  # in it: the folder is a report, and may be replaced
UNFINISHED = ".unfinished"  # where a report is written until it is whole
CSV = {title: title.lower().replace(" ", "_") for title in NOTES}  # names of tables
WRITTEN = ("index.html", "plot.svg", "plot.pdf", *(f"tables/{name}.csv" for name in CSV.values()))
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
        drawn += [row | {key: lead + row[key] for key in ("arm", "line")} for row in run.rows]
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
        plot = plot_curves(drawn, new / "plot")
        csv = (new / "tables" / "arms.csv").read_text(encoding="utf-8")
        write_file(new / "index.html", page_of(parts, answers, plot=plot, csv=csv))
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
    parts: list[tuple[RunData, dict[str, Table]]], answers: list[dict], *, plot: str, csv: str
) -> str:
    """index.html, of runs with their tables, their answers, the plot's SVG and the arms as CSV."""
    page = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    page.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    page.globals |= {"metrics": METRICS, "table_notes": NOTES}
    page.globals |= {"cell_text": cell_text, "verdict": verdict}
    return page.get_template("page.html").render(
        parts=parts,
        plot=plot[plot.find("<svg") :].replace(INK, "currentColor"),
        downloads={"plot.svg": ("image/svg+xml", plot), "arms.csv": ("text/csv", csv)},
        answers=answers,
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        js=(HERE / "page.js").read_text(encoding="utf-8"),
    )


def pack_answers(run: RunData) -> dict:
    """A run's answers as page.js reads them: {name, greedy, arms, questions}.

    question  {id, choice, category, prompts, answers: one an arm, null where it has none}
    answer    [turn]; turn: {parts: see text_parts, tokens}, and with a trace {first: text, rounds:
              as in traces.py}
    """
    questions: dict[tuple, dict] = {}
    for number, (arm, rows) in enumerate(run.records.items()):
        traces = {answer_key(row): row["turns"] for row in run.traces.get(arm, [])}
        for row in rows:
            key = answer_key(row)
            place = {"id": key[0], "choice": key[1], "category": row["category"]}
            place["prompts"] = [turn["prompt"] for turn in row["turns"]]
            question = questions.setdefault(key, place | {"answers": [None] * len(run.records)})
            answer = [{"parts": text_parts(t), "tokens": len(t["token_ids"])} for t in row["turns"]]
            for turn, traced in zip(answer, traces.get(key, []), strict=False):
                if traced["same_as_record"]:
                    turn |= {"first": traced["first"]["text"], "rounds": traced["rounds"]}
            question["answers"][number] = answer
    greedy = all(row["temperature"] == 0 for rows in run.records.values() for row in rows)
    place = {"name": run.name, "greedy": greedy, "arms": list(run.records)}
    return place | {"questions": list(questions.values())}


def text_parts(turn: dict) -> list[list]:
    """The answer's text cut at its fuzzy tokens: [text, {regret, D} of a fuzzy token or None]."""
    text, parts, end = turn["text"], [], 0
    known = [
        {"regret": regret, "D": divergence}
        for r in turn["rounds"]
        for fuzzy, regret, divergence in zip(r["fuzzy"], r["regret"], r["divergence"], strict=True)
        if fuzzy
    ]
    # the last round may hold fuzzy tokens that were trimmed
    for (first, last), of_token in zip(turn["fuzzy_spans"], known, strict=False):
        parts += [[text[end:first], None], [text[first:last], of_token]]
        end = last
    return [part for part in [*parts, [text[end:], None]] if part[0]]
