"""The MT-Bench judge: a run's answers rated by a model behind an OpenAI-compatible endpoint.

    OPENAI_API_KEY=... python evaluate/judge.py --run runs/mt_bench_80 --model gpt-4
    OPENAI_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none python evaluate/judge.py ...

FastChat's protocol, every answer rated alone: its prompts, GPT-4's reference answers for math,
reasoning and coding, temperature 0; but of a reply's marks the last one counts. In RUN/judge/JUDGE:
verdicts/, a run folder with every reply, to which is only ever appended; and made from it
single.json and its rows as a table in single.md. A stopped or killed run continues where
it was: run the same command again. What has a rating is not asked again, what has none is; answers
that have changed since are judged anew.
"""

from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, check_least, check_text
from eagle_fsd.options import option

RULES = ("last", "first")  # of parse_rating


@dataclass
class JudgeOptions:
    run: str = field(metadata={"help": "The folder of the run whose answers are judged."})
    model: str = field(metadata={"help": "The judge, as the endpoint names it."})
    arms: list[str] = option([], "The arms to judge. Empty: all of the run.")
    rating: str = option(
        "last",
        "The mark of a reply that is its rating: the last one behind the judge's thought, or the "
        "first one, which is FastChat's rule.",
    )
    concurrency: int = option(4, "The number of requests at a time.")

    def __post_init__(self):
        if not self.model:
            raise BadInput("--model is empty: name the judge as its endpoint does")
        check_text(self.model)
        if self.rating not in RULES:
            raise BadInput(f"--rating must be last or first, got {self.rating!r}")
        check_least(self, "--", concurrency=1)


def run_judge(options: JudgeOptions) -> None:
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.tasks.judge import judge_all, open_judge, parse_rating, read_requests
    from eagle_fsd.tasks.task_scores import score_table, single_rows, write_table

    requests = read_requests(Path(options.run))
    arms = {request["arm"] for request in requests}
    if lacking := set(options.arms) - arms:
        raise BadInput(f"--arms {', '.join(lacking)}: the run has {', '.join(sorted(arms))}")
    folder = Path(options.run) / "judge" / quote(options.model, safe="")
    # a verdict is of its request alone, whatever code asked
    forms = {"single": dict.fromkeys(("question_id", "arm", "turn", "reply", "error"))}
    verdicts = Run(folder / "verdicts", {}, key=itemgetter("digest"), forms=forms)
    by_digest = verdicts.records["single"]

    def replies(requests: list[dict]) -> list[dict]:
        return [by_digest[r["digest"]] for r in requests if r["digest"] in by_digest]

    def rated(requests: list[dict]) -> list[dict]:
        rows = [
            row | {"verdict": parse_rating(row["reply"], options.rating)}
            for row in replies(requests)
        ]
        return [row for row in rows if row["verdict"] is not None]

    wanted = [request for request in requests if request["arm"] in (options.arms or arms)]
    done = {row["digest"] for row in rated(wanted)}
    if unasked := [request for request in wanted if request["digest"] not in done]:
        client = open_judge()
        verdicts.begin_session()
        judge_all(client, options.model, unasked, verdicts, concurrency=options.concurrency)
    failed = len(wanted) - len(rated(wanted))
    print(f"\n{options.model}: {len(rated(wanted))} ratings are in {verdicts.folder}")
    if failed:
        print(f"{failed} replies held none or were refused: the same command asks these again")
    both = [[parse_rating(row["reply"], rule) for rule in RULES] for row in replies(wanted)]
    if unlike := sum(last != first for last, first in both):
        print(
            f"{unlike} replies are rated otherwise by the last mark behind the judge's thought "
            f"than by the first mark, FastChat's rule: here --rating {options.rating} counts"
        )
    if refusals := [row["error"] for row in replies(wanted) if row["error"]]:
        print(f"The first of {len(refusals)} refusals: {refusals[0]:.400}")
    if lines := rated(requests):
        rows = single_rows(lines, judge=options.model)
        table = score_table(rows)
        write_table(folder / "single", table, rows)
        print(f"\n{table}")


def main(arguments: list[str] | None = None) -> None:
    run_command(run_judge, [JudgeOptions], arguments)


if __name__ == "__main__":
    main()
