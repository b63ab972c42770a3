"""The report's folder, written whole or not at all.

index.html      everything, in one file that needs nothing else
report.json     the tables' rows, for programs; marks the folder as a report
tables/*.csv    arms, by_category, equal_speed, scores, pairwise, accepted_drafts
plot.svg, .pdf  loss against gain

Everything that comes from a run is untrusted text: page.html escapes it, page.js puts it in by
textContent.
"""

import shutil
import statistics
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curves import INK, plot_curves
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.report.page_answers import pack_answers
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import NOTES, run_tables
from eagle_fsd.evaluation.tables import cell_text, phrases, write_csv
from eagle_fsd.runs.jsonl import write_json

MARK = "report.json"
HERE = Path(__file__).parent


def write_report(runs: list[RunData], output: Path) -> list[str]:
    """Build the report beside `output`, then put it in its place; an old one stays until then.

    Returns:
        All warnings.

    Raises:
        BadInput: arms that cannot be compared; the output is a file, holds something else than a
            report, or cannot be written.
    """
    empty = output.is_dir() and not any(output.iterdir())
    if output.exists() and not empty and not (output / MARK).is_file():
        raise BadInput(f"--output {output} is something else than a report: name another folder")
    building = output.resolve().with_name(f".{output.resolve().name}.new")
    shutil.rmtree(building, ignore_errors=True)
    try:
        (building / "tables").mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"cannot write to --output {output} ({error})") from error
    try:
        warnings = _build(runs, building)
        shutil.rmtree(output, ignore_errors=True)
        building.rename(output.resolve())
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return warnings


def _build(runs: list[RunData], folder: Path) -> list[str]:
    tables = [run_tables(run) for run in runs]
    drawn, csvs = [], {}
    for run, of_run in zip(runs, tables, strict=True):
        lead = f"{run.name}: " if len(runs) > 1 else ""  # runs are lines of their own
        drawn += [row | {key: lead + row[key] for key in ("arm", "line")} for row in run.rows]
        for title, (_, rows) in of_run.items():
            if title == "Arms" or rows is not run.rows:
                name = title.lower().replace(" ", "_")
                csvs.setdefault(name, []).extend({"run": run.name} | row for row in rows)
    for name, rows in csvs.items():
        write_csv(folder / "tables" / f"{name}.csv", rows)
    plot = plot_curves(drawn, folder / "plot")
    csv = (folder / "tables" / "arms.csv").read_text(encoding="utf-8")
    page = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    page.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    page.globals |= {"metrics": METRICS, "table_notes": NOTES, "median": statistics.median}
    page.globals |= {"cell_text": cell_text, "phrases": phrases}
    text = page.get_template("page.html").render(
        parts=list(zip(runs, tables, strict=True)),
        plot=plot[plot.find("<svg") :].replace(INK, "currentColor"),
        downloads={"plot.svg": ("image/svg+xml", plot), "arms.csv": ("text/csv", csv)},
        answers=pack_answers(runs),
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        js=(HERE / "page.js").read_text(encoding="utf-8"),
    )
    (folder / "index.html").write_text(text, encoding="utf-8")
    warnings = [f"{run.name}: {text}" for run in runs for text in run.doubts()]
    made = [{"name": run.name, "options": run.options, "sessions": run.sessions} for run in runs]
    write_json(folder / MARK, {"runs": made, "warnings": warnings, "tables": csvs})
    return warnings
