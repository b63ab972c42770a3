"""The report's folder, written whole or not at all.

index.html      everything, in one file (in Markdown: the runs' own summary.md)
report.json     the tables' rows, for programs; marks the folder as a report
tables/*.csv    arms, scores, pairwise verdicts, categories, loss at equal speed, ...
plot.svg, .pdf  loss against gain
"""

import shutil
import tempfile
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.curve_plot import plot_curves
from eagle_fsd.evaluation.report.page import build_page
from eagle_fsd.evaluation.report.page_answers import pack_answers
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import run_tables
from eagle_fsd.evaluation.tables import write_csv
from eagle_fsd.runs.jsonl import write_json

MARK = "report.json"


def check_output(output: Path, runs: list[Path]) -> None:
    """Refuse a folder that is not ours to replace.

    Raises:
        BadInput: it is a file, holds something else than a report, or has to do with a run.
    """
    mine = output.resolve()
    for run in (path.resolve() for path in runs):
        if mine == run or mine in run.parents or run in mine.parents:
            raise BadInput(f"--output {output} and the run {run} overlap: name another --output")
    if output.exists() and not output.is_dir():
        raise BadInput(f"--output {output} is a file: name a folder")
    if output.is_dir() and any(output.iterdir()) and not (output / MARK).is_file():
        raise BadInput(f"--output {output} holds something else than a report: name another")


def write_report(runs: list[RunData], output: Path) -> list[str]:
    """Build the report beside `output`, then put it in its place; an old one stays until then.

    Returns:
        All warnings.

    Raises:
        BadInput: see check_output; arms that cannot be compared; the folder cannot be written.
    """
    check_output(output, [run.folder for run in runs])
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise BadInput(f"cannot write to --output {output} ({error})") from error
    try:
        building.chmod(0o755)  # mkdtemp's is for the owner alone
        warnings = _build(runs, building)
        _replace(building, output)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return warnings


def _replace(building: Path, output: Path) -> None:
    """Two renames: killed between them, the old report is at the hidden name `.OUTPUT.old`."""
    old = output.with_name(f".{output.name}.old")
    if output.exists():
        shutil.rmtree(old, ignore_errors=True)
        output.rename(old)
    try:
        building.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _build(runs: list[RunData], folder: Path) -> list[str]:
    (folder / "tables").mkdir()
    rows = [run.rows() for run in runs]
    tables = [run_tables(run, found) for run, found in zip(runs, rows, strict=True)]
    by_name: dict[str, list[dict]] = {}
    for run, found in zip(runs, tables, strict=True):
        for table in {table.name: table for table in found}.values():
            by_name.setdefault(table.name, []).extend({"run": run.name} | r for r in table.rows)
    for name, every in by_name.items():
        write_csv(folder / "tables" / f"{name}.csv", every)
    plot = plot_curves(_named_lines(runs, rows), folder / "plot")
    answers, short = pack_answers(runs)
    notes = [f"{short} questions lack an answer or its trees, to keep the page small"] * bool(short)
    csv = (folder / "tables" / "arms.csv").read_text(encoding="utf-8")
    page = build_page(runs, rows, tables, plot, csv, answers, notes=notes)
    (folder / "index.html").write_text(page, encoding="utf-8")
    warnings = [f"{run.name}: {text}" for run in runs for text in run.warnings] + notes
    made = [{"name": run.name, "options": run.options, "sessions": run.sessions} for run in runs]
    write_json(folder / MARK, {"runs": made, "warnings": warnings, "tables": by_name})
    return warnings


def _named_lines(runs: list[RunData], rows: list[list[dict]]) -> list[dict]:
    """All rows; those of several runs are lines of their own."""
    if len(runs) == 1:
        return rows[0]
    return [
        row | {"arm": f"{run.name}: {row['arm']}", "line": f"{run.name}: {row['line']}"}
        for run, found in zip(runs, rows, strict=True)
        for row in found
    ]
