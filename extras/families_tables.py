"""The results of families.py as a table of families, and as the tables of its page of results."""

import csv
import io
import re
from collections import Counter, defaultdict
from pathlib import Path

import transformers

from eagle_fsd.runs.jsonl import write_file
from eagle_fsd.runs.provenance import describe_run

ROOT = Path(__file__).parent.parent
TABLE, PAGE = ROOT / "results/families/families.csv", ROOT / "results/families/README.md"
BEGIN, END = "<!-- written by scripts/families.sh -->", "<!-- end of what is written -->"
EXACT, SOME, REFUSED = "exact on every engine", "exact on some engines", "refused"
NOT_BUILT, FAILED, WRONG = "could not be built", "failed with an error", "silently wrong"
OUTCOMES = EXACT, SOME, REFUSED, NOT_BUILT, FAILED, WRONG


def outcome(result: dict) -> tuple[str, str]:
    """Of a family: one of OUTCOMES, and why it is not the first."""
    engines = result["engines"]
    reasons = {engine: f"{each['reason']}" for engine, each in engines.items() if each["reason"]}
    seen = {each["outcome"] for each in engines.values()}
    if result["not_built"] and "wrong" not in seen:
        crashed = result["not_built"].startswith("crashed")
        return FAILED if crashed else NOT_BUILT, result["not_built"]
    if seen == {"exact"}:
        return EXACT, ""
    if len(reasons) == len(engines) and len(set(reasons.values())) == 1:
        why = next(iter(reasons.values()))
    else:
        why = "; ".join(f"{engine}: {reason}" for engine, reason in reasons.items())
    for kind, name in (("wrong", WRONG), ("failed", FAILED), ("exact", SOME)):
        if kind in seen:
            return name, why
    return REFUSED, why


def as_rows(results: list[dict]) -> list[dict]:
    rows = []
    for result in results:
        name, why = outcome(result)
        engines = {engine: each["outcome"] for engine, each in result["engines"].items()}
        decodes = sum(each["decodes"] for each in result["engines"].values())
        rows.append(
            {"family": result["family"], "outcome": name}
            | {engine: engines.get(engine, "") for engine in ("stock", "folded", "packed")}
            | {"bfloat16": result["bfloat16"], "answers": decodes, "reason": why}
            | {"notes": "; ".join(result["notes"]), "seconds": result["seconds"]}
        )
    return rows


def write_tables(results: list[dict], *, everything: bool) -> None:
    """Print how many families there are of each outcome and, of a run over all, write the files."""
    rows = as_rows(results)
    for row in rows if not everything else ():
        print(f"{row['family']}: {row['outcome']} {row['reason']} {row['notes']}".rstrip())
    counts = Counter(row["outcome"] for row in rows)
    for name in OUTCOMES:
        if name in counts:
            print(f"{counts[name]:4} {name}")
    refused_half = [row for row in rows if row["bfloat16"] not in ("", "taken")]
    print(f"{len(refused_half):4} of those exact on engine stock are refused in bfloat16")
    if everything:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        table = io.StringIO()
        writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_file(TABLE, table.getvalue())
        page = PAGE.read_text() if PAGE.exists() else f"{BEGIN}\n{END}\n"
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        write_file(PAGE, f"{before}{BEGIN}\n{as_page(rows)}\n{END}{after}")


def as_page(rows: list[dict]) -> str:
    """The tables in Markdown."""
    about = describe_run("cpu")
    answers = sum(row["answers"] for row in rows)
    lines = [
        f"transformers {transformers.__version__} knows {len(rows)} causal families. "
        f"{answers:,} answers were compared, at commit {about['commit']}.",
        "",
        "| outcome | families |",
        "|---|---|",
    ]
    lines += [f"| {name} | {sum(r['outcome'] == name for r in rows)} |" for name in OUTCOMES]
    for name in OUTCOMES:
        groups: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if row["outcome"] == name:
                groups[general(row["reason"])].append(row["family"])
        if not groups:
            continue
        lines += ["", f"## {name.capitalize()}", ""]
        if name == EXACT:
            lines.append(", ".join(f"`{family}`" for family in groups[""]))
            continue
        lines += ["| reason | number | families |", "|---|---|---|"]
        for reason, families in sorted(groups.items(), key=lambda group: -len(group[1])):
            named = ", ".join(f"`{family}`" for family in families)
            lines.append(f"| {reason.replace('|', '/')} | {len(families)} | {named} |")
    return "\n".join(lines)


def general(reason: str) -> str:
    """A reason without the family's name and numbers, so that families share it."""
    reason = re.sub(r"\btargets? of type '[^']*' (is|has|are not supported:) ?", "", reason)
    reason = re.sub(r" \(relative error [^)]*\)", "", reason)
    return re.sub(r"[.:]? Tested( families)?: .*", "", reason)
