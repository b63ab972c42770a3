"""What a bench run came to: for people a table, a sentence an arm and a plot, for programs JSON and
CSV."""

from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.curve_plot import plot_curves
from eagle_fsd.evaluation.metrics import by_category, summarize
from eagle_fsd.evaluation.tables import table, tables, terminal_table, verdict, write_csv
from eagle_fsd.runs.jsonl import write_json

NOT_TIMED = (
    "Made by several processes at once, or for quality only: seconds are not timings, so no speed "
    "is given."
)


def report_bench(
    bench: Bench, *, published_tau: float = 0.0, extra: str = "", further: dict | None = None
) -> str:
    """Write summary.md, .json, .csv, .svg, .pdf and by_category.csv.

    Args:
        published_tau: from a paper, said beside; 0: none.
        extra: further tables, in summary.md and in the text.
        further: further entries of summary.json.

    Returns:
        What the terminal shows: the main table, a sentence an arm, and where the rest is.
    """
    run, records, title = bench.run, bench.records(), bench_title(bench)
    sessions = run.sessions_of(records)
    timed = all(session.get("timed", True) for session in sessions)
    rows = summarize(records, timed=timed)
    categories = by_category(records, timed=timed)
    notes = [] if timed else [NOT_TIMED]
    mixed = run.origin(records)[1]
    if mixed and timed:
        notes.append(
            f"{mixed} questions were answered in more than one session: their arms were not timed "
            "side by side"
        )
    notes += dict.fromkeys(warning for s in sessions for warning in s.get("warnings", []))
    if published_tau:
        notes.append(
            f"Published tokens_per_round of exact: {published_tau} (from the paper, not measured "
            "here)"
        )
    whole = {
        "title": title,
        "options": run.settings,
        "sessions": run.sessions,
        "questions_in_several_sessions": mixed,
        "notes": notes,
        "rows": rows,
        "by_category": categories,
        "published_tau_not_measured_here": published_tau or None,
    }
    write_json(run.folder / "summary.json", whole | (further or {}))
    write_csv(run.folder / "summary.csv", rows)
    said = "\n".join(f"- {verdict(row)}" for row in rows)
    parts = [title, said, tables(rows)]
    if len({row["category"] for row in categories}) > 1:
        write_csv(run.folder / "by_category.csv", categories)
        parts.append(table(categories, "categories"))
    told = [extra] if extra else []
    if plot_curves(rows, run.folder / "summary"):
        parts.append("![loss against gain](summary.svg)")
    text = "\n\n".join([*parts, *told, *notes])
    (run.folder / "summary.md").write_text(text + "\n", encoding="utf-8")
    rest = (
        f"More columns, with intervals: {run.folder}/summary.md, .json, .csv; the plot: .svg\n"
        "The page with the answers side by side: "
        f"python evaluate/report.py {run.folder} --output {run.folder}_report"
    )
    return "\n" + "\n\n".join([title, terminal_table(rows), said, *told, *notes, rest])


def bench_title(bench: Bench) -> str:
    """What was run, on what, in one line."""
    settings, options, records = bench.run.settings, bench.options, bench.records()
    origin, _ = bench.run.origin(records)
    rows = [row for found in records.values() for row in found]
    warm = sorted({row["temperature"] for row in rows})
    temperature = ", ".join(f"{value:g}" for value in warm)
    trees = " and ".join(sorted({row["tree"] for row in rows if row["tree"]}))
    choices = f", {options.num_choices} choices" if options.num_choices > 1 else ""
    return (
        f"{bench.name}, {len(bench.questions)} questions{choices}, {settings['target']} in "
        f"{settings['dtype']}{f', tree {trees}' if trees else ''}, temperature {temperature}, "
        f"{options.max_new_tokens} new tokens; {origin}"
    )
