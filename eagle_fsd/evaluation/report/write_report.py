"""What is made of a run's rows: the summary that a command leaves beside its records, and the
report on any number of runs, a folder of its own.

index.html      everything, in one file that needs nothing else; marks the folder as a report
tables.json     the rows of all runs: arms, by_category, equal_gain, scores
plot.svg        regret (above temperature 0 TV) against gain, and plot_speed.svg against tokens per
                second; so also plot_logp of log-probabilities, plot_score1 of the first score, ...

Everything that comes from a run is untrusted text: page.html escapes it, the scripts put it in by
textContent.
"""

import json
import os
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from eagle_fsd.cli import shown_command
from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.bench import Bench
from eagle_fsd.evaluation.metrics import METRICS
from eagle_fsd.evaluation.plots import (
    GAIN,
    INK,
    SPEED,
    caption,
    heights,
    line_styles,
    plot_curves,
    score_key,
)
from eagle_fsd.evaluation.record_numbers import repetition
from eagle_fsd.evaluation.run_data import RunData
from eagle_fsd.evaluation.tables import NOTES, cell_text, markdown_table, terminal_table
from eagle_fsd.plugin import of_plugin
from eagle_fsd.runs.folder import answer_key, lock_folder
from eagle_fsd.runs.jsonl import write_file, write_json
from eagle_fsd.stats import LEAST_QUESTIONS
from eagle_fsd.thoughts import thought_tokens

MADE_BY = '<meta name="generator" content="eagle_fsd.report">'  # of page.html
NAMES = {title: title.lower().replace(" ", "_") for title in NOTES}  # of tables
ACROSS = {GAIN: ("gain in tokens per round", ""), SPEED: ("tokens per second", "_speed")}
# names of plots, and patterns of such
DRAWN = ("plot.svg", "plot_speed.svg", "plot_logp.svg", "plot_logp_speed.svg")
DRAWN += ("plot_score[0-9]*.svg",)
NO_SCORE = dict.fromkeys(("value", "low", "high"))
HERE = Path(__file__).parent


def report_bench(bench: Bench, *, scores: Sequence[dict] = (), further: dict | None = None) -> str:
    """Write summary.md and summary.json; returns what the terminal shows. `scores` are rows of
    task_scores.compare_scores, `further` are entries of summary.json."""
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
    whole |= {"rows": rows, "by_category": run.categories}
    whole |= {
        NAMES[title]: made.rows for title, made in run.tables.items() if made.rows is not rows
    }
    write_json(folder / "summary.json", whole | (further or {}))
    verdicts = "\n".join(f"- {row['arm']}: {run.verdict(row)}" for row in rows)
    # what speeds and gains are to be doubted for stands above them
    notes = [f"Note: {note}." for note in [*doubts, run.noise_note()] if note]
    sections = {
        name: f"### {name}\n\n{table.note}\n\n{markdown_table(table.rows, table.columns)}"
        for name, table in run.tables.items()
    }
    text = [title, *notes, verdicts, *sections.values()]
    write_file(folder / "summary.md", "\n\n".join(filter(None, text)) + "\n")
    plugin = ["--plugin", path] if (path := bench.model_options.plugin) else []
    page = shown_command("report.py", folder, *plugin, "--output", f"{folder}_report")
    intervals = ", with intervals," if len(bench.questions) >= LEAST_QUESTIONS else ""
    rest = (
        f"All columns{intervals} are in {folder}: summary.md and summary.json.\n"
        f"The report's page is made by: {page}"
    )
    shown = [title, *notes, sections.get("Scores"), terminal_table(rows), verdicts, rest]
    return "\n" + "\n\n".join(filter(None, shown))


def write_report(runs: list[RunData], output: Path) -> list[str]:
    """Write the report in place of an old one, of which nothing stays; what a report does not write
    stays. Returns all warnings."""
    # a folder may be written to that is empty or a report, by what its own page says
    if os.path.exists(output) and (os.path.isfile(output) or any(output.glob("[!.]*"))):
        page = output / "index.html"
        own = page.is_file() and not page.is_symlink()
        if not own or MADE_BY not in page.read_text(encoding="utf-8", errors="replace"):
            raise BadInput(
                f"--output {output} is something else than a report (or a report of an older "
                "version: delete it): name another folder"
            )
    # 1. the rows of all runs
    drawn, whole = [], {}
    scores = list(dict.fromkeys(score["score"] for run in runs for score in run.scores))
    leads = [f"{run.name}: " if len(runs) > 1 else "" for run in runs]  # each has lines of its own
    for run, lead in zip(runs, leads, strict=True):
        given = {(score["score"], score["arm"]): score["mean"] for score in run.scores}
        for row in run.rows:
            drawn.append(row | {"run": run.name})
            drawn[-1] |= {key: lead + row[key] for key in ("arm", "line")}
            for score in scores:
                drawn[-1][score_key(score)] = given.get((score, row["arm"]), NO_SCORE)
        for title, table in run.tables.items():
            if title == "Arms" or table.rows is not run.rows:
                named = [{"run": run.name} | row for row in table.rows]
                whole.setdefault(NAMES[title], []).extend(named)
    warnings = [f"{run.name}: {text}" for run in runs for text in run.doubts()]
    # 2. the files
    files = {"tables.json": json.dumps(whole, indent=2, allow_nan=False) + "\n"}
    figures, styles = [], line_styles(drawn)
    colors = {row[key]: styles[row["line"]]["color"] for row in drawn for key in ("arm", "line")}
    sampled = any(run.sampled for run in runs)
    named = heights(drawn, sampled=sampled, scores=scores)
    kinds = ["", "_logp", *(f"_score{number + 1}" for number in range(len(scores)))]
    for kind, (up, name) in zip(kinds, named.items(), strict=True):
        for across, (right, ending) in ACROSS.items():
            svg = plot_curves(drawn, across=across, up=up)
            if svg:
                files[f"plot{kind}{ending}.svg"] = svg
            svg = svg[svg.find("<svg") :].replace(INK, "currentColor")
            figures.append((name, right, svg, caption(drawn, across=across, up=up)))
    page = render_page(
        title=", ".join(run.name for run in runs),
        subject="; ".join(dict.fromkeys(run.subject for run in runs)),
        runs=runs,
        plots=figures,
        colors=colors,
        answers=[
            pack_answers(run) | {"colors": [colors[lead + arm] for arm in run.records]}
            for run, lead in zip(runs, leads, strict=True)
        ],
    )
    # 3. onto the disk
    with lock_folder(output):
        old = [path for pattern in DRAWN for path in output.glob(pattern)]
        write_file(output / "index.html", page)  # first: a kill behind it leaves a report
        for name, content in files.items():
            write_file(output / name, content)
        for path in old:
            if path.name not in files:
                path.unlink()
    return warnings


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
    """A page of one answer alone, with the tree of each of its rounds, from what TurnTrace has
    taken down and its tokens' texts, whose first `thought` characters are thought."""
    parts = [[texts[0], None]]
    emitted = [token for r in trace["rounds"] for token in r["emitted"]]
    for token, text in zip(emitted, texts[1:], strict=True):
        cost = {"regret": token["regret"], "D": token["divergence"]}
        parts.append([text, cost if token["source"] == "fuzzy" else None])
    turn = {"parts": parts, "tokens": len(parts)} | traced_turn(trace, texts, thought)
    question = {"id": "", "choice": 0, "category": "", "prompts": [prompt]}
    question |= {"answers": [[turn]], "scores": [None]}
    answers = [{"name": "", "greedy": greedy, "arms": [arm], "own": [], "questions": [question]}]
    title = "Draft trees of an answer"
    return render_page(title=title, subject=subject, runs=[], plots=[], answers=answers)


def traced_turn(trace: dict, texts: Sequence[str], thought: int) -> dict:
    """What answer.js draws of a turn, see answer_page for what it is made of."""
    thought = thought_tokens(thought, accumulate(map(len, texts)))
    return {
        "first": trace["first"],
        "texts": texts,
        "rounds": [*trace["rounds"]],
        "thought": thought,
    }


def render_page(**values: object) -> str:
    page = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True)
    page.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    page.globals |= {"metrics": METRICS, "cell_text": cell_text}
    css, js = (page_file("answer", kind) + page_file("page", kind) for kind in ("css", "js"))
    return page.get_template("page.html").render(css=css, js=js, **values)


def page_file(name: str, kind: str) -> str:
    """The style ("css") or the script ("js") of the report's `page`, or of any page's `answer`."""
    return (HERE / f"{name}.{kind}").read_text(encoding="utf-8")


def pack_answers(run: RunData) -> dict:
    """A run's answers as page.js and answer.js read them: {name, greedy, arms, own (the numbers of
    those of a plug-in), questions}; a report adds {colors} of the arms.

    question  {id, choice, category, prompts, answers, scores: one an arm, null where it has none}
    answer    [turn]; turn: {parts: see text_parts, tokens, thought: characters at its front, as
              JavaScript counts them, repetition: see record_numbers}, and with a trace {first,
              rounds: see TurnTrace, thought: tokens at its front, whose texts by themselves join
              to another text}
    scores    {scores: name -> value, the scorer's own first, reference: the right answers}
    """
    questions: dict[tuple, dict] = {}
    for number, (arm, rows) in enumerate(run.records.items()):
        for row in rows:
            key = answer_key(row)
            if key not in questions:
                prompts = [turn["prompt"] for turn in row["turns"]]
                questions[key] = {"id": key[0], "choice": key[1], "category": row["category"]}
                questions[key] |= {"prompts": prompts, "answers": [None] * len(run.records)}
                questions[key]["scores"] = [None] * len(run.records)
            questions[key]["answers"][number] = answer = []
            for turn in row["turns"]:
                thought = turn["text"][: turn.get("thought", 0)]
                letters = thought.encode("utf-16-le", errors="surrogatepass")
                packed = {"parts": text_parts(turn), "tokens": len(turn["token_ids"])}
                packed["thought"] = len(letters) // 2
                packed["repetition"] = repetition(turn["token_ids"])
                if trace := turn.get("trace"):
                    packed |= {"first": trace["first"], "rounds": trace["rounds"]}
                    packed["thought"] = trace["thought"]
                answer.append(packed)
            if scored := run.scored.get(arm, {}).get(key):
                reference = [str(text) for text in scored.get("reference", [])]
                scores = {"scores": scored["scores"], "reference": reference}
                questions[key]["scores"][number] = scores
    greedy = all(row["temperature"] == 0 for row in run.all_records)
    head = {"name": run.name, "greedy": greedy, "arms": list(run.records)}
    head["own"] = [number for number, arm in enumerate(run.records) if of_plugin(arm)]
    return head | {"questions": list(questions.values())}


def text_parts(turn: dict) -> list[list]:
    """The answer's text cut at its fuzzy tokens: [text, {regret, D} of a fuzzy token or None]."""
    text, parts, end = turn["text"], [], 0
    costs = [
        {"regret": regret, "D": divergence}
        for r in turn["rounds"]
        for fuzzy, regret, divergence in zip(r["fuzzy"], r["regret"], r["divergence"], strict=True)
        if fuzzy
    ]
    # the last round may hold fuzzy tokens that were trimmed
    for (first, last), cost in zip(turn["fuzzy_spans"], costs, strict=False):
        parts += [[text[end:first], None], [text[first:last], cost]]
        end = last
    return [part for part in [*parts, [text[end:], None]] if part[0]]
