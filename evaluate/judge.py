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
from eagle_fsd.config import check_known, check_text
from eagle_fsd.options import option


@dataclass
class JudgeOptions:
    run: str = field(metadata={"help": "The folder of the run whose answers are judged."})
    model: str = field(metadata={"help": "The judge, as the endpoint names it."})
    arms: list[str] = option([], "The arms to judge. Empty: all of the run.")

    def __post_init__(self):
        check_text(self.model)


def run_judge(options: JudgeOptions) -> None:
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.tasks.judge import judge_all, parse_rating, read_requests
    from eagle_fsd.tasks.task_scores import score_table, single_rows, write_table

    requests = read_requests(Path(options.run))
    arms = {request["arm"]: None for request in requests}
    for arm in options.arms:
        check_known("--arms", arm, arms)
    folder = Path(options.run) / "judge" / quote(options.model, safe="")
    # a verdict is of its request alone, whatever code asked
    verdicts = Run(folder / "verdicts", {}, key=itemgetter("digest"))

    def rated() -> dict[str, dict]:
        """By digest, what has a rating."""
        rows = {key: row | {"verdict": parse_rating(row["reply"])} for key, row in replies.items()}
        return {key: row for key, row in rows.items() if row["verdict"] is not None}

    # 1. Ask what has no rating.
    replies = verdicts.records["single"]
    wanted = [request for request in requests if request["arm"] in (options.arms or arms)]
    done = rated()
    if unasked := [request for request in wanted if request["digest"] not in done]:
        judge_all(options.model, unasked, verdicts)

    # 2. Count, and make the table of all arms that have ratings.
    done = rated()
    failed = [replies[r["digest"]] for r in wanted if r["digest"] not in done]
    print(f"\n{options.model}: {len(wanted) - len(failed)} ratings are in {verdicts.folder}")
    if failed:
        print(f"{len(failed)} replies held none or were refused: the same command asks these again")
    if refusals := [row["error"] for row in failed if row["error"]]:
        print(f"The first of {len(refusals)} refusals: {refusals[0]:.400}")
    if lines := [done[r["digest"]] for r in requests if r["digest"] in done]:
        rows = single_rows(lines, judge=options.model)
        table = score_table(rows)
        write_table(folder / "single", table, rows)
        print(f"\n{table}")


def main(arguments: list[str] | None = None) -> None:
    run_command(run_judge, [JudgeOptions], arguments)


if __name__ == "__main__":
    main()
