"""The report's folder, written whole or not at all.

index.html      everything, in one file
report.md       the tables, and where the runs come from
report.json     the tables' rows, for programs; marks the folder as a report
tables/*.csv    arms, scores, pairwise verdicts, categories, loss at equal speed, speed at equal
                quality
plots/*.png
"""

import re
import shutil
import tempfile
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.report.arm_rows import arm_rows, iso_quality
from eagle_fsd.evaluation.report.equal_speed import equal_speed
from eagle_fsd.evaluation.report.page import build_page, origin
from eagle_fsd.evaluation.report.plots import Picture
from eagle_fsd.evaluation.report.quality_plots import plot_iso_quality, plot_quality
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import (
    Table,
    equal_speed_table,
    iso_table,
    run_tables,
)
from eagle_fsd.evaluation.report.round_plots import plot_depths, plot_divergences, plot_lengths
from eagle_fsd.evaluation.report.trace_data import pack_traces
from eagle_fsd.evaluation.tables import write_csv
from eagle_fsd.runs.jsonl import write_json

MARK = "report.json"
LOSSES = {
    "fuzzy share": "fuzzy_share",
    "argmax share lost against plain": "argmax_share_lost",
    "regret a token, nats": "regret_per_token",
    "log p a token lost against plain, nats": "logp_lost",
}
QUALITY = {
    "argmax_share_minus_plain": "argmax share, difference to plain",
    "mean_logp_minus_plain": "log p a token, difference to plain",
}


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
        BadInput: see check_output; figures that cannot be made; the folder cannot be written.
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
    (folder / "plots").mkdir()
    rows = {run.name: arm_rows(run) for run in runs}
    all_rows = [row for run in runs for row in rows[run.name]]
    iso = iso_quality(all_rows, LOSSES)
    tables = [table for run in runs for table in run_tables(run, rows[run.name])]
    tables += equal_speed_table(equal_speed(_records(runs), all_rows)) + iso_table(iso)
    pictures = _draw(runs, all_rows, iso, folder / "plots")
    traces, left_out = pack_traces(runs)
    notes = []
    if left_out:
        notes.append(f"{left_out} traces are left out, to keep the page small")
    _write_csvs(tables, folder / "tables")
    (folder / "report.md").write_text(_markdown(runs, tables, pictures), encoding="utf-8")
    page = build_page(runs, tables, pictures, folder / "plots", traces, notes=notes)
    (folder / "index.html").write_text(page, encoding="utf-8")
    warnings = [f"{run.name}: {text}" for run in runs for text in run.warnings] + notes
    whole = {
        "runs": [
            {"name": run.name, "options": run.options, "sessions": run.sessions} for run in runs
        ],
        "warnings": warnings,
        "tables": {name: found for name, found in _by_name(tables).items()},
    }
    write_json(folder / MARK, whole)
    return warnings


def _draw(runs: list[RunData], rows: list[dict], iso: list[dict], folder: Path) -> list[Picture]:
    """Every picture that there is something for."""
    records = _records(runs)
    scores = dict.fromkeys(f"score {row['score']}" for run in runs for row in run.scores)
    measures = QUALITY | {key: key for key in scores}
    drawn = [
        plot_quality(rows, folder, name=_file_name(f"quality_{key}"), key=key, words=words)
        for key, words in measures.items()
    ]
    drawn += [
        plot_iso_quality(rows, iso, folder),
        plot_depths(rows, records, folder),
        plot_divergences(rows, records, folder),
        plot_lengths(rows, folder),
    ]
    return [picture for picture in drawn if picture is not None]


def _records(runs: list[RunData]) -> dict[tuple[str, str], list[dict]]:
    return {(run.name, arm): found for run in runs for arm, found in run.records.items()}


def _file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


def _by_name(tables: list[Table]) -> dict[str, list[dict]]:
    """Rows of the tables of one name; several tables may show the same rows."""
    found: dict[str, list[dict]] = {}
    for table in tables:
        rows = found.setdefault(table.name, [])
        rows += [row for row in table.rows if not any(row is other for other in rows)]
    return found


def _write_csvs(tables: list[Table], folder: Path) -> None:
    for name, rows in _by_name(tables).items():
        write_csv(folder / f"{name}.csv", rows)


def _markdown(runs: list[RunData], tables: list[Table], pictures: list[Picture]) -> str:
    parts = ["# Report: " + ", ".join(run.name for run in runs)]
    for run in runs:
        parts.append(f"## {run.name}")
        parts.append("\n".join(f"- {what}: {words}" for what, words in origin(run)))
        if run.warnings:
            parts.append("\n".join(f"Warning: {text}" for text in run.warnings))
        parts += [table.markdown() for table in tables if table.run == run.name]
    parts += [table.markdown() for table in tables if not table.run]
    parts.append("## Pictures")
    parts += [f"![{p.title}](plots/{p.name}.png)\n\n{p.note}" for p in pictures]
    return "\n\n".join(parts) + "\n"
