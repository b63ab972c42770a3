"""The tables of a bench run, as text, JSON, CSV and picture."""

from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.bench_plot import plot_speed_against_regret
from eagle_fsd.evaluation.metrics import by_category, summarize
from eagle_fsd.evaluation.tables import category_table, tables, write_csv
from eagle_fsd.runs.jsonl import write_json

NOT_TIMED = (
    "Made by several processes at once, or for quality only: seconds are not timings, so no speed "
    "is given."
)


def bench_title(bench: Bench) -> str:
    """What was run, on what, in one line."""
    settings, options, records = bench.run.settings, bench.options, bench.records()
    origin, _ = bench.run.origin(records)
    rows = [row for found in records.values() for row in found]
    warm = sorted({row.get("temperature", settings["temperature"]) for row in rows})
    temperature = ", ".join(f"{value:g}" for value in warm)
    shapes = [row["tree"]["num_draft_tokens"] for row in rows if row.get("tree")]
    drafts = ", ".join(map(str, sorted(set(shapes or [settings["num_draft_tokens"]]))))
    choices = f", {options.num_choices} choices" if options.num_choices > 1 else ""
    return (
        f"{bench.name}, {len(bench.questions)} questions{choices}, {settings['target']} in "
        f"{settings['dtype']}, {drafts} drafts, temperature {temperature}, "
        f"{options.max_new_tokens} new tokens; {origin}"
    )


def is_timed(bench: Bench) -> bool:
    """Whether seconds are timings: no session had several processes, or was for quality only."""
    return all(s.get("timed", True) for s in bench.run.sessions_of(bench.records()))


def report_bench(
    bench: Bench, *, published_tau: float = 0.0, extra: str = "", figures: dict | None = None
) -> str:
    """Write summary.md, summary.json, summary.csv, by_category.csv and summary.png.

    Args:
        published_tau: from a paper, printed beside; 0: none.
        extra: further tables for summary.md.
        figures: further figures for summary.json.

    Returns:
        The text, with where it was written to.
    """
    run, records, title = bench.run, bench.records(), bench_title(bench)
    timed = is_timed(bench)
    rows = summarize(records, timed=timed)
    parts = [title, tables(rows)]
    written = ["summary.md", "summary.json", "summary.csv", "records/", "answers/"]
    categories = by_category(records, timed=timed)
    if len({row["category"] for row in categories}) > 1:
        parts.append(category_table(categories))
        write_csv(run.folder / "by_category.csv", categories)
        written.insert(3, "by_category.csv")
    parts += [extra] if extra else []
    notes = [] if timed else [NOT_TIMED]
    mixed = run.origin(records)[1]
    if mixed and timed:
        notes.append(
            f"{mixed} questions were answered in more than one session: their arms were not timed "
            "side by side"
        )
    sessions = run.sessions_of(records)
    notes += dict.fromkeys(warning for s in sessions for warning in s.get("warnings", []))
    if published_tau:
        notes.append(
            f"Published tokens_per_round of exact: {published_tau} (from the paper, not measured "
            "here)"
        )
    text = "\n\n".join([*parts, *notes]) + "\n"
    write_json(
        run.folder / "summary.json",
        {
            "title": title,
            "options": run.settings,
            "sessions": run.sessions,
            "questions_in_several_sessions": mixed,
            "notes": notes,
            "rows": rows,
            "by_category": categories,
            "published_tau_not_measured_here": published_tau or None,
            **(figures or {}),
        },
    )
    write_csv(run.folder / "summary.csv", rows)
    (run.folder / "summary.md").write_text(text)
    if "plain" in records and timed:
        plot_speed_against_regret(rows, run.folder / "summary.png", title=title)
        written.insert(2, "summary.png")
    return f"\n{text}\nwritten to {run.folder}: {', '.join(written)}"
