"""Mine forks: which drafted tokens, put in the place of the target's own, change what an answer
comes to. They are what train_harm.py learns from.

    python train/mine_forks.py --tasks gsm8k:train.jsonl --output forks

Every question is answered by the target; the rounds of exact decoding are replayed, and at some of
the places where they end a drafted token is put in and the target goes on alone. Questions are
those of evaluate/tasks.py, a file of prompts, or both; take none that you report on. The folder
holds records/texts.jsonl, records/forks.jsonl and summary.json. A killed run continues: run the
same command again.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from eagle_fsd.cli import option, run_command
from eagle_fsd.config import SMALL_TREE, BadInput, check_known, check_least, parse_tree, tree_name

if TYPE_CHECKING:
    from eagle_fsd.evaluation.questions import Question
    from eagle_fsd.models.loaded import Model
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.training.forks import Prompt

FREE = ("output", "questions", "batch_size", "device")


@dataclass
class ForkOptions:
    output: str = field(metadata={"help": "The folder to write to, which is train_harm.py's."})
    tasks: list[str] = field(
        metadata={
            "help": "The questions: gsm8k:PATH, ifeval:PATH, or PATH of a question.jsonl, whose "
            "first turns are asked and whose answers are compared by their text or a --scorer."
        }
    )
    target: str = option(
        "smollm2", "The target: smollm2 (embedded), a folder, a .gguf file or a hub id."
    )
    head: str = option("", "The draft head. Empty: the one that ships for smollm2.")
    tree: str = option(tree_name(SMALL_TREE), "The shape of the draft trees.")
    questions: int = option(0, "The number of questions of each task, from its beginning. 0: all.")
    scorer: str = option(
        "",
        "The scorer by which it is found what answers come to, one of evaluate/tasks.py's. Empty: "
        "the usual one of each task.",
    )
    places: str = option(
        "all",
        "Where answers are forked: `all`, wherever another token was drafted, which `path` asks "
        "about; or `ends`, where the own token was not drafted, about which alone `harm` asks.",
    )
    forks: int = option(10, "The most forks of an answer; one of five is a control by chance.")
    max_new_tokens: int = option(256, "The most tokens that an answer may have.")
    batch_size: int = option(64, "The number of answers at a time; lower it if memory ends.")
    seed: int = option(0, "The seed by which places and tokens are drawn.")
    device: str = option("", "The torch device. Empty: cuda if there is one, else cpu.")
    dtype: str = option(
        "", "The dtype: bfloat16, float16 or float32. Empty: that of decoding on this device."
    )

    def __post_init__(self):
        import torch

        from eagle_fsd.models.load import check_device, default_dtype

        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = self.dtype or default_dtype(self.device)
        check_device(self.device, self.dtype)
        check_known("--places", self.places, ("ends", "all"))
        self.tree = tree_name(parse_tree(self.tree))
        check_least(self, "--", questions=0, forks=1, max_new_tokens=2, batch_size=1, seed=0)


def mine_forks(options: ForkOptions) -> None:
    from eagle_fsd.drafters.walk import TOKENS_BEYOND_END
    from eagle_fsd.evaluation.questions import cut
    from eagle_fsd.models import load
    from eagle_fsd.models.digests import head_digests, target_digests
    from eagle_fsd.models.loaded import load as load_model
    from eagle_fsd.runs.folder import Run
    from eagle_fsd.tasks.scorers import check_scorable
    from eagle_fsd.tasks.task_sources import read_task
    from eagle_fsd.training.forks import ForkMiner

    asked: dict[int | str, tuple[Question, str]] = {}
    for source in options.tasks:
        questions, usual = read_task(source)
        questions = cut(questions[: options.questions or None], 1)  # its first turns
        scorer = options.scorer or usual
        for question in questions:
            if question.question_id in asked:
                raise BadInput(f"--tasks: two questions are called {question.question_id!r}")
            asked[question.question_id] = question, scorer
        if scorer == "humaneval":
            raise BadInput("humaneval is a test set and would run code: mine other questions")
        if scorer:
            check_scorable(questions, scorer)
    shape = parse_tree(options.tree)
    if shape.tree_depth > TOKENS_BEYOND_END:
        raise BadInput(f"--tree {options.tree} is deeper than {TOKENS_BEYOND_END} levels: lower it")
    own = options.head or load.default_head(options.target)
    digests = target_digests(options.target) | head_digests(own)
    run = Run(options.output, {"command": "mine_forks"} | asdict(options) | digests, free=FREE)
    missing = [key for key in asked if (key, 0) not in run.records["done"]]
    if missing:
        model = load_model(
            options.target,
            head=own,
            tree=shape,
            dtype=options.dtype,
            device=options.device,
        )
        miner = ForkMiner(
            model.target,
            model.drafter,
            frozenset(model.stop(options.max_new_tokens).token_ids),
            run,
            options.max_new_tokens,
            options.forks,
            options.seed,
            options.batch_size,
            options.places == "all",
        )
        prompts = [prompt_of(model, *asked[key], options) for key in asked]
        run.begin_session()
        miner.mine(prompts)
    run.finish()
    summary = summarize(run)
    print(f"forks: {options.output}\n{json.dumps(summary, indent=2)}")


def prompt_of(model: "Model", question: "Question", scorer: str, options: ForkOptions) -> "Prompt":
    """The question as it is asked, and what its answers come to by the task's scorer."""
    from eagle_fsd.drafters.walk import TOKENS_BEYOND_END
    from eagle_fsd.tasks.scorers import SCORERS
    from eagle_fsd.training.forks import Prompt

    ids, outcome = model.prompt_ids(question.turns[0]), None
    budget = options.max_new_tokens
    if len(ids) + budget + TOKENS_BEYOND_END > model.max_positions:
        raise BadInput(
            f"question {question.question_id!r} takes {len(ids)} tokens, and with an answer of "
            f"{budget} and the {TOKENS_BEYOND_END} that a tree may look ahead more than the "
            f"target's {model.max_positions} positions: leave it out"
        )
    if scorer:
        outcome = partial(comes_to, SCORERS[scorer], model, question)
    return Prompt(question.question_id, question.category, ids, outcome)


def comes_to(scorer, model: "Model", question: "Question", tokens: list[int]) -> object:
    """What an answer comes to: its final number or the like, else the checkers' verdict."""
    text = model.text(tokens)
    if scorer.final is not None:
        return scorer.final(text)
    return sorted(scorer.score(text, question).items())


def summarize(run: "Run") -> dict:
    """How many forks there are, and which share of them is harmful."""
    from eagle_fsd.runs.jsonl import write_json
    from eagle_fsd.training.harm_fit import shares

    summary = {"questions": len(run.records["done"])}
    summary["forks"] = shares([*run.records["forks"].values()])
    write_json(run.folder / "summary.json", summary)
    return summary


if __name__ == "__main__":
    run_command(mine_forks, [ForkOptions])
