"""The MT-Bench judge: a run's answers rated by a model behind an OpenAI-compatible endpoint.

    OPENAI_API_KEY=... python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4
    python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4 --mode pairwise --baseline plain
    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none python evaluate/judge.py ...

FastChat's protocol: its prompts, GPT-4's reference answers for math, reasoning and coding,
temperature 0; pairwise in both orders. In RUN/model_judgment: JUDGE_single.jsonl (or
JUDGE_pair.jsonl), which FastChat's show_result reads, replies without a verdict beside it in
.unparsed.jsonl, all replies in .replies.jsonl, figures in .json and .md. A stopped or killed run
continues where it was: run the same command again. What has a verdict is never asked again.
"""

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

from transformers import HfArgumentParser

from eagle_fsd.evaluation.questions import read_questions
from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.models.model_options import option
from eagle_fsd.runs.jsonl import write_json
from eagle_fsd.runs.provenance import describe_run, without_checkout
from eagle_fsd.tasks.judge.asking import ask_all
from eagle_fsd.tasks.judge.endpoint import (
    TEMPERATURE,
    Endpoint,
    JudgeStoppedError,
    check_base_url,
    check_key,
)
from eagle_fsd.tasks.judge.judge_prompts import STEMS, read_prompts
from eagle_fsd.tasks.judge.judge_scores import pairwise_rows, single_rows, tables
from eagle_fsd.tasks.judge.ledger import Game, Ledger
from eagle_fsd.tasks.judge.matches import (
    Match,
    arms_with_answers,
    choose_arms,
    make_matches,
    read_answers,
    read_arm,
)
from eagle_fsd.tasks.judge.sessions import Prices, cost, hosts, next_number

OPENAI = "https://api.openai.com/v1"


@dataclass
class JudgeOptions:
    run: str = field(metadata={"help": "folder of a run, or one with FastChat's answers/ARM.jsonl"})
    model: str = field(metadata={"help": "the judge, as the endpoint names it"})
    mode: str = option("single", "single: a score an answer; pairwise: against the baseline")
    baseline: str = option("plain", "arm that the others are compared with")
    arms: list[str] = field(default_factory=list, metadata={"help": "empty: all of the run"})
    question_file: str = option("", "question.jsonl; empty: the run's own, or MT-Bench's")
    prompt_file: str = option("", "judge_prompts.jsonl; empty: FastChat's")
    reference_file: str = option("", "reference answers; empty: FastChat's, by GPT-4")
    max_tokens: int = option(2048, "budget of a reply; FastChat's is 2048")
    concurrency: int = option(4, "requests at a time")
    request_seconds: float = option(120.0, "time limit of a request")
    retries: int = option(8, "further attempts at a request, after errors that may pass")
    retry_seconds: float = option(1.0, "before the first retry; doubled each time, up to 60")
    give_up: int = option(20, "stop after so many judgments from the start without a verdict")
    retry_unparsed: bool = option(False, "ask again where a reply held no verdict")
    prompt_price: float = option(
        0.0, "of a million prompt tokens, for the cost, also of launches without; 0: not given"
    )
    reply_price: float = option(0.0, "of a million reply tokens")

    def __post_init__(self):
        if self.mode not in STEMS:
            raise ValueError(f"--mode must be {' or '.join(STEMS)}, got {self.mode!r}")
        for name in ("max_tokens", "concurrency", "request_seconds", "give_up"):
            if not getattr(self, name) > 0:
                raise ValueError(f"--{name} must be above 0, got {getattr(self, name)}")
        for name in ("retries", "retry_seconds", "prompt_price", "reply_price"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"--{name} must not be negative, got {getattr(self, name)}")


def wanted_matches(options: JudgeOptions) -> list[Match]:
    """Everything that is to have a verdict; all files are read and checked here."""
    folder = Path(options.run)
    known = arms_with_answers(folder)
    baseline = options.baseline if options.mode == "pairwise" else None
    arms = choose_arms(known, options.arms, baseline)
    questions = read_questions(
        options.question_file or own_question_file(folder) or mt_bench_dir() / "question.jsonl"
    )
    prompts = read_prompts(
        options.prompt_file or mt_bench_dir() / "judge_prompts.jsonl", options.mode
    )
    references = read_answers(
        Path(options.reference_file or mt_bench_dir() / "reference_answer" / "gpt-4.jsonl")
    )
    answers = {arm: read_arm(folder, arm) for arm in [*arms, *([baseline] if baseline else [])]}
    return make_matches(options.mode, prompts, questions, references, answers, baseline)


def own_question_file(folder: Path) -> str:
    """The question file that the run was made from; "" for MT-Bench's."""
    path = folder / "run.json"
    if not path.is_file():
        return ""
    try:
        return json.loads(path.read_text())["options"].get("question_file", "")
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error!r})") from error


def run_judge(options: JudgeOptions) -> None:
    matches = wanted_matches(options)
    with Ledger(Path(options.run), options.model, options.mode).opened() as ledger:
        games = ledger.open_games(matches, retry_unparsed=options.retry_unparsed)
        record = open_record(ledger)
        for session in record["sessions"]:
            session["prices"] = session["prices"] or prices(options)
        if games:
            judge_games(options, ledger, games, matches, record)
        report(options, ledger, matches, record)


def open_record(ledger: Ledger) -> dict:
    """The record of earlier sessions, or an empty one."""
    path = ledger.file(".json")
    if not path.is_file():
        return {"sessions": []}
    try:
        return {"sessions": json.loads(path.read_text())["sessions"]}
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error!r}): move it away") from error


def prices(options: JudgeOptions) -> Prices | None:
    given = {"prompt": options.prompt_price, "reply": options.reply_price}
    return given if any(given.values()) else None


def judge_games(
    options: JudgeOptions, ledger: Ledger, games: list[Game], matches: list[Match], record: dict
) -> None:
    """Ask the judge what is open; the session is on record before the first request."""
    base_url = os.environ.get("OPENAI_BASE_URL") or OPENAI
    key = os.environ.get("OPENAI_API_KEY", "")
    try:
        host = check_base_url(base_url)
        check_key(key)
    except ValueError as error:
        raise ValueError(f"{error}\n{how_to_go_on(ledger, matches)}") from error
    others = [other for other in hosts(ledger, record["sessions"]) if other != host]
    if others:
        print(
            f"warning: {options.model} gave verdicts in {ledger.file('.jsonl')} at "
            f"{', '.join(others)} and is now asked at {host}: they are one figure only if it is "
            "the same model",
            file=sys.stderr,
        )
    described = describe_run("cpu")
    described["versions"]["openai"] = version("openai")
    ledger.session = next_number(ledger, record["sessions"])
    record["sessions"].append(
        {
            "session": ledger.session,
            "started": time.time(),
            "host": host,
            "temperature": TEMPERATURE,
            "max_tokens": options.max_tokens,
            "prices": prices(options),
            **{name: described[name] for name in ("command", "commit", "versions")},
        }
    )
    write_record(options, ledger, record)

    async def ask() -> None:
        endpoint = Endpoint(
            options.model,
            base_url=base_url,
            key=key,
            max_tokens=options.max_tokens,
            seconds=options.request_seconds,
            retries=options.retries,
            first_wait=options.retry_seconds,
        )
        async with endpoint:
            await ask_all(
                endpoint,
                ledger,
                games,
                concurrency=options.concurrency,
                give_up=options.give_up,
            )

    try:
        asyncio.run(ask())
    except JudgeStoppedError as stopped:
        write_record(options, ledger, record)
        raise JudgeStoppedError(f"{host}: {stopped}\n{how_to_go_on(ledger, matches)}") from None


def how_to_go_on(ledger: Ledger, matches: list[Match]) -> str:
    return (
        f"The answers are untouched. {progress(ledger, matches)} are in {ledger.file('.jsonl')}; "
        "the same command goes on from there."
    )


def progress(ledger: Ledger, matches: list[Match]) -> str:
    have = sum(match.key in ledger.verdicts for match in matches)
    return f"{have} of {len(matches)} verdicts"


def write_record(options: JudgeOptions, ledger: Ledger, record: dict) -> list[dict]:
    """Write how the verdicts were made and what they come to; returns the arms' figures."""
    figures = single_rows if options.mode == "single" else pairwise_rows
    rows = figures(ledger.verdicts.values(), options.baseline)
    total, without_price = cost(ledger, record["sessions"])
    record |= {
        "judge": options.model,
        "options": without_checkout(asdict(options)),
        "verdicts": len(ledger.verdicts),
        "unparsed": len(ledger.unparsed),
        "prompt_tokens": sum(tokens for _, tokens, _ in ledger.usage.values()),
        "reply_tokens": sum(tokens for _, _, tokens in ledger.usage.values()),
        "cost": total,
        "replies_without_price": without_price,
        "rows": rows,
    }
    write_json(ledger.file(".json"), record)
    return rows


def report(options: JudgeOptions, ledger: Ledger, matches: list[Match], record: dict) -> None:
    """The table, as text and JSON.

    Raises:
        ValueError: there is no verdict.
    """
    rows = write_record(options, ledger, record)
    unparsed = sum(match.key in ledger.unparsed for match in matches)
    told = (
        f"{unparsed} replies held no verdict (in {ledger.file('.unparsed.jsonl')}); "
        "--retry_unparsed asks them again"
    )
    if not rows:
        raise ValueError(f"no verdict to report: {told}")
    paid = "" if record["cost"] is None else f", cost {record['cost']:.2f}"
    if paid and record["replies_without_price"]:
        paid += f" without {record['replies_without_price']} replies that no price was given for"
    text = (
        f"{options.model}, {options.mode}: {progress(ledger, matches)}; "
        f"{record['prompt_tokens']} prompt and {record['reply_tokens']} reply tokens{paid}\n\n"
        f"{tables(rows, options.mode, options.baseline)}\n"
    )
    if unparsed:
        text += f"\n{told}\n"
    asked = hosts(ledger, record["sessions"])
    if len(asked) > 1:
        text += f"\nThe replies come from {', '.join(asked)}.\n"
    ledger.file(".md").write_text(text)
    print(f"\n{text}\nwritten to {ledger.file('.jsonl')}, .md, .json, .replies.jsonl")


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser(JudgeOptions)
    try:
        run_judge(*parser.parse_args_into_dataclasses(arguments))
    except (ValueError, JudgeStoppedError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
