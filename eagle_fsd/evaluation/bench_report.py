"""What a bench run came to, for people and for programs."""

from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.curves import plot_curves
from eagle_fsd.evaluation.report.read_runs import RunData
from eagle_fsd.evaluation.report.report_tables import NOTES, run_tables
from eagle_fsd.evaluation.tables import markdown_table, terminal_table, verdict, write_csv
from eagle_fsd.runs.jsonl import write_json


def report_bench(bench: Bench, *, extra: str = "", further: dict | None = None) -> str:
    """Write summary.md, .json, .csv, .svg, .pdf and by_category.csv.

    `extra` are further tables, `further` further entries of summary.json. Returns what the terminal
    shows: the main table, a sentence an arm, and where the rest is.
    """
    folder, settings = bench.run.folder, bench.run.settings
    run = RunData(bench.name, settings, bench.run.sessions, bench.records())
    rows, notes = run.rows, run.doubts()
    trees = {row["tree"] for row in rows if row["tree"]}
    title = (
        f"{bench.name}, {len(bench.questions)} questions, {run.subject}, trees "
        f"{', '.join(sorted(trees)) or 'none'}, {settings['max_new_tokens']} new tokens; "
        f"{run.origin('device')}, commit {run.origin('commit')}"
    )
    whole = {"title": title, "options": settings, "sessions": run.sessions, "notes": notes}
    whole |= {"rows": rows, "by_category": run.categories, **(further or {})}
    write_json(folder / "summary.json", whole)
    write_csv(folder / "summary.csv", rows)
    write_csv(folder / "by_category.csv", run.categories)
    plot = "![loss against gain](summary.svg)" if plot_curves(rows, folder / "summary") else ""
    said = "\n".join(f"- {verdict(row)}" for row in rows)
    notes = [f"Note: {note}." for note in notes]
    tables = [
        f"### {title}\n\n{NOTES[title]}\n\n{markdown_table(found, columns)}"
        for title, (columns, found) in run_tables(run).items()
    ]
    text = "\n\n".join(filter(None, [title, said, plot, *tables, extra, *notes]))
    (folder / "summary.md").write_text(text + "\n", encoding="utf-8")
    rest = (
        f"All columns, with intervals, written to {folder}/summary.md, .json and .csv; the plot: "
        f"summary.svg\nThe page: python evaluate/report.py {folder} --output {folder}_report"
    )
    return "\n" + "\n\n".join(
        filter(None, [title, terminal_table(rows), said, extra, *notes, rest])
    )
