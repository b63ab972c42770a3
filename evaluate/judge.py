"""The MT-Bench judge: a run's answers rated by a model behind an OpenAI-compatible endpoint.

    OPENAI_API_KEY=... python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4
    python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4 --mode pairwise --baseline plain
    OPENAI_API_KEY=none python evaluate/judge.py --base_url http://localhost:8000/v1 ...

FastChat's protocol: its prompts, GPT-4's reference answers for math, reasoning and coding,
temperature 0; pairwise in both orders. In RUN/judge/JUDGE: verdicts/, a run folder with every
reply, to which is only ever appended; and made from it single.json (or pairwise_BASELINE.json) and
its rows as a table in .md. A stopped or killed run continues where it was: run the same command
again. No verdict is asked twice; answers that have changed since are judged anew.
"""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from eagle_fsd.cli import option, run_command
from eagle_fsd.config import BadInput, check_least, check_text


@dataclass
class JudgeOptions:
    run: str = field(metadata={"help": "The folder of the run whose answers are judged."})
    model: str = field(metadata={"help": "The judge, as the endpoint names it."})
    mode: str = option(
        "single", "single gives every answer a score; pairwise compares it with the baseline's."
    )
    baseline: str = option("plain", "The arm that the others are compared with.")
    arms: list[str] = field(
        default_factory=list, metadata={"help": "The arms to judge. Empty: all of the run."}
    )
    base_url: str = option(
        "", "The base URL of the API. Empty: that of OPENAI_BASE_URL, or OpenAI's own."
    )
    question_file: str = option(
        "", "A question.jsonl. Empty: the one that the run answered, or MT-Bench's."
    )
    parameters: str = option(
        "{}", "Further parameters of a request as JSON, beside temperature 0 and max_tokens 2048."
    )
    concurrency: int = option(4, "The number of requests at a time.")
    request_seconds: float = option(120.0, "The time limit of a request, in seconds.")
    retries: int = option(
        8, "The number of further attempts at a request, after errors that may pass."
    )
    retry_unparsed: bool = option(False, "Ask again where a reply held no verdict.")

    def __post_init__(self):
        if self.mode not in ("single", "pairwise"):
            raise BadInput(f"--mode must be single or pairwise, got {self.mode!r}")
        if not self.model:
            raise BadInput("--model is empty: name the judge as its endpoint does")
        check_text(self.model)
        if not self.request_seconds > 0:
            raise BadInput(f"--request_seconds must be above 0, got {self.request_seconds}")
        check_least(self, "--", concurrency=1, retries=0)


def run_judge(options: JudgeOptions) -> None:
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.tasks.judge_protocol import read_requests
    from eagle_fsd.tasks.judge_verdicts import JudgeEndpoint, judge_all
    from eagle_fsd.tasks.task_scores import write_scores

    mode, baseline = options.mode, options.baseline
    requests = read_requests(
        Path(options.run), mode=mode, baseline=baseline, question_file=options.question_file
    )
    arms = list(dict.fromkeys(request["arm"] for request in requests))
    lacking = [arm for arm in options.arms or arms[:1] or [baseline] if arm not in arms]
    if lacking:
        raise BadInput(
            f"--arms {', '.join(lacking)}: nothing to judge there; there is of "
            f"{', '.join(arms) or 'no arm'} (pairs need a question that {baseline} answered too)"
        )
    wanted = [request for request in requests if request["arm"] in (options.arms or arms)]
    folder = Path(options.run) / "judge" / quote(options.model, safe="")
    # a verdict is of its request alone, whatever code asked
    verdicts = Run(folder / "verdicts", {}, key=lambda row: row["digest"])
    name = "single" if mode == "single" else f"pairwise_{quote(baseline, safe='')}"
    given = verdicts.records[name]  # by digest
    unasked = [request for request in wanted if request["digest"] not in given]
    if options.retry_unparsed:
        unasked = [r for r in wanted if given.get(r["digest"], {}).get("verdict") is None]

    def progress() -> str:
        replies = [given[r["digest"]]["verdict"] for r in wanted if r["digest"] in given]
        silent = replies.count(None)
        text = f"{len(replies) - silent} of {len(wanted)} verdicts are in {verdicts.folder}"
        retry = f"; {silent} replies held no verdict, --retry_unparsed asks them again"
        return text + (retry if silent else "")

    if unasked:
        try:
            endpoint = JudgeEndpoint(
                options.model,
                base_url=options.base_url,
                seconds=options.request_seconds,
                retries=options.retries,
                parameters=options.parameters,
            )
            verdicts.begin_session(**endpoint.described)
            judge_all(endpoint, unasked, verdicts, name, concurrency=options.concurrency)
        except BadInput as stopped:
            raise BadInput(
                f"{stopped}\nThe answers are untouched. {progress()}. The same command goes on "
                "from there."
            ) from None
    lines = [given[r["digest"]] for r in requests if r["digest"] in given]
    lines = [line for line in lines if line["verdict"] is not None]
    if not lines:
        raise BadInput(f"{options.model} gave no verdict: {progress()}")
    print(f"\n{options.model}, {mode}: {progress()}\n")
    print(write_scores(folder / name, lines, judge=options.model))


def main(arguments: list[str] | None = None) -> None:
    run_command(run_judge, [JudgeOptions], arguments)


if __name__ == "__main__":
    main()
