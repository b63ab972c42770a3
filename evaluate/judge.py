"""The MT-Bench judge: a run's answers rated by a model behind an OpenAI-compatible endpoint.

    OPENAI_API_KEY=... python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4
    python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4 --mode pairwise --baseline plain
    OPENAI_API_KEY=none python evaluate/judge.py --base_url http://localhost:8000/v1 ...

FastChat's protocol: its prompts, GPT-4's reference answers for math, reasoning and coding,
temperature 0; pairwise in both orders. In RUN/judge/JUDGE: verdicts.jsonl, every reply, to which
is only ever appended; and made from it single.json (or pairwise_BASELINE.json), its rows as a
table in .md, and .fastchat.jsonl for FastChat's show_result. A stopped or killed run continues
where it was: run the same command again. No verdict is asked twice; answers that have changed since
are judged anew.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from eagle_fsd.config import BadInput
from eagle_fsd.models.model_options import option
from eagle_fsd.runs.command import run_command
from eagle_fsd.tasks.judge_protocol import PROMPTS, read_requests

if TYPE_CHECKING:
    from eagle_fsd.tasks.judge_verdicts import JudgeEndpoint


@dataclass
class JudgeOptions:
    run: str = field(metadata={"help": "folder of a run, or one with FastChat's answers/ARM.jsonl"})
    model: str = field(metadata={"help": "the judge, as the endpoint names it"})
    mode: str = option("single", "single: a score an answer; pairwise: against the baseline")
    baseline: str = option("plain", "arm that the others are compared with")
    arms: list[str] = field(default_factory=list, metadata={"help": "empty: all of the run"})
    base_url: str = option("", "of the API; empty: OPENAI_BASE_URL, or OpenAI's own")
    question_file: str = option("", "question.jsonl; empty: the run's own, or MT-Bench's")
    prompt_file: str = option("", "judge_prompts.jsonl; empty: FastChat's")
    reference_file: str = option("", "reference answers; empty: FastChat's, by GPT-4")
    parameters: str = option("{}", "JSON, beside FastChat's temperature 0 and max_tokens 2048")
    concurrency: int = option(4, "requests at a time")
    request_seconds: float = option(120.0, "time limit of a request")
    retries: int = option(8, "further attempts at a request, after errors that may pass")
    give_up: int = option(20, "stop after so many replies from the start without a verdict")
    retry_unparsed: bool = option(False, "ask again where a reply held no verdict")

    def __post_init__(self):
        if self.mode not in PROMPTS:
            raise BadInput(f"--mode must be {' or '.join(PROMPTS)}, got {self.mode!r}")
        if not self.model:
            raise BadInput("--model is empty: name the judge as its endpoint does")
        if not self.request_seconds > 0:
            raise BadInput(f"--request_seconds must be above 0, got {self.request_seconds}")
        for name, least in (("concurrency", 1), ("give_up", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"--{name} must be at least {least}, got {getattr(self, name)}")


def run_judge(options: JudgeOptions) -> None:
    from eagle_fsd.tasks.judge_scores import write_scores
    from eagle_fsd.tasks.judge_verdicts import VerdictFile, ask_all

    requests = read_requests(
        Path(options.run),
        mode=options.mode,
        baseline=options.baseline,
        arms=options.arms,
        question_file=options.question_file,
        prompt_file=options.prompt_file,
        reference_file=options.reference_file,
    )
    wanted = [request for request in requests if not options.arms or request.arm in options.arms]
    folder = Path(options.run) / "judge" / quote(options.model, safe="")
    with VerdictFile(folder / "verdicts.jsonl").opened() as verdicts:
        unasked = verdicts.unasked(wanted, again=options.retry_unparsed)
        try:
            if unasked:
                ask_all(
                    endpoint(options),
                    unasked,
                    verdicts,
                    concurrency=options.concurrency,
                    give_up=options.give_up,
                )
        except BadInput as stopped:
            raise BadInput(
                f"{stopped}\nThe answers are untouched. {verdicts.progress(wanted)}. The same "
                "command goes on from there."
            ) from None
        print(f"\n{options.model}, {options.mode}: {verdicts.progress(wanted)}\n")
        replies = [(request, verdicts.line(request)) for request in requests]
        print(write_scores(folder, replies, options.model, options.mode, options.baseline))


def endpoint(options: JudgeOptions) -> "JudgeEndpoint":
    from eagle_fsd.tasks.judge_verdicts import OPENAI, JudgeEndpoint

    return JudgeEndpoint(
        options.model,
        base_url=options.base_url or os.environ.get("OPENAI_BASE_URL") or OPENAI,
        key=os.environ.get("OPENAI_API_KEY", ""),
        seconds=options.request_seconds,
        retries=options.retries,
        parameters=options.parameters,
    )


def main(arguments: list[str] | None = None) -> None:
    run_command(run_judge, [JudgeOptions], arguments)


if __name__ == "__main__":
    main()
