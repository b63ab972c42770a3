"""The MT-Bench judge: a run's answers rated by a model behind an OpenAI-compatible endpoint.

    OPENAI_API_KEY=... python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4
    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none python evaluate/judge.py ...

FastChat's protocol, every answer rated alone: its prompts, GPT-4's reference answers for math,
reasoning and coding, temperature 0 where the judge takes it; but which of a reply's marks counts is
told in eagle_fsd/tasks/judge.py, parse_rating. In RUN/judge/JUDGE:
verdicts/, a run folder with every reply, to which is only ever appended; and made from it
single.json and its rows as a table in single.md. A stopped or killed run continues where
it was: run the same command again. What has a rating is not asked again, what has none is; answers
that have changed since are judged anew.
"""

from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, check_known
from eagle_fsd.options import option


@dataclass
class JudgeOptions:
    run: str
    """The folder of the run whose answers are judged."""
    model: str
    """The judge, as the endpoint names it."""
    arms: list[str] = option([])
    """The arms to judge. Empty: all of the run."""


def run_judge(options: JudgeOptions) -> None:
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.tasks.judge import judge_all, parse_rating, read_requests
    from eagle_fsd.tasks.task_scores import compare_scores, write_scores

    requests = read_requests(Path(options.run))
    arms = {request["arm"]: None for request in requests}
    for arm in options.arms:
        check_known("--arms", arm, arms)
    folder = Path(options.run) / "judge" / quote(options.model, safe="")
    # a verdict is of its request alone, whatever code asked
    verdicts = Run(folder / "verdicts", {}, key=itemgetter("digest"))
    replies = verdicts.records["single"]

    def rating(request: dict) -> float | None:
        reply = replies.get(request["digest"])
        return parse_rating(reply["reply"]) if reply else None

    # 1. Ask what has no rating.
    wanted = [request for request in requests if request["arm"] in (options.arms or arms)]
    if unasked := [request for request in wanted if rating(request) is None]:
        judge_all(options.model, unasked, verdicts)

    # 2. Count, and make the table of all arms that have ratings, of all turns and of each.
    failed = [replies[request["digest"]] for request in wanted if rating(request) is None]
    told = f"{options.model}: {len(wanted) - len(failed)} ratings are in {verdicts.folder}"
    if failed:
        told += f"\n{len(failed)} replies held none or were refused; the same command asks them"
    if refusals := [row["error"] for row in failed if row["error"]]:
        told += f"\nThe first of {len(refusals)} refusals: {refusals[0]:.400}"
    values = [
        request | {"score": score, "value": value}
        for request in requests
        if (value := rating(request)) is not None
        for score in (f"judge {options.model}", f"judge {options.model}, turn {request['turn']}")
    ]
    if failed and len(failed) == len(wanted):  # a script is to hear of it
        raise BadInput(told)
    print(f"\n{told}")
    if values:
        print(f"\n{write_scores(folder / 'single', compare_scores(values))}")


if __name__ == "__main__":
    run_command(run_judge, [JudgeOptions])
