"""Train the model of harm, by which the rule `harm` and the cost of `path:b,cost=harm` go.

    python train/train_harm.py --forks forks --output runs/harm

It learns from forks of mine_forks.py, in seconds once the target's states are computed, and is a
folder for --harm. report.json and report.md say, for questions that it has not seen, how well it
tells harmful forks apart: the area under the ROC curve beside those of single signals and of a
model that reads all signals but no states, and whether its chances are what is found. With --other
they say it for forks of other tasks too.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from eagle_fsd.cli import option, run_command
from eagle_fsd.config import BadInput, check_least


@dataclass
class HarmOptions:
    forks: str = field(metadata={"help": "A folder of mine_forks.py."})
    output: str = field(metadata={"help": "The folder to write the model to."})
    other: list[str] = option(
        [], "Folders of forks of other tasks, of which nothing is learnt, to report on too."
    )
    hidden: int = option(0, "The size of a hidden layer. 0: none, the model is logistic.")
    seed: int = option(0, "The seed of its first weights.")
    device: str = option("", "The torch device. Empty: cuda if there is one, else cpu.")

    def __post_init__(self):
        import torch

        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_least(self, "--", hidden=0, seed=0)


def train_harm(options: HarmOptions) -> None:
    from eagle_fsd.heads.harm_model import check_replaceable, different
    from eagle_fsd.models import load
    from eagle_fsd.models.digests import head_digests, target_digests
    from eagle_fsd.runs.folder import lock_folder
    from eagle_fsd.runs.provenance import from_checkout

    check_replaceable(options.output)
    mined = {folder: read_folder(folder) for folder in (options.forks, *options.other)}
    made, _, _ = mined[options.forks]
    target, own = (from_checkout(made[name]) for name in ("target", "head"))
    own = own or load.default_head(target)
    digests = target_digests(target) | head_digests(own)
    for folder, (of, _, _) in mined.items():
        if different(digests, of):
            raise BadInput(
                f"the forks in {folder} are of another target or head than {target} and "
                f"{own} are now: mine them with these"
            )
    with lock_folder(Path(options.output)):
        learn(options, mined, target, own, digests)


def learn(
    options: HarmOptions, mined: dict[str, tuple], target: str, own: str, digests: dict
) -> None:
    """From what read_folder gives of every folder, for these target and head: fit, report, write.

    Args:
        target, own: the target's name and the head's.
        digests: of the files of both.
    """
    from eagle_fsd.heads.harm_model import HarmConfig, write_model
    from eagle_fsd.models import load
    from eagle_fsd.runs.jsonl import write_file, write_json
    from eagle_fsd.runs.provenance import describe_run
    from eagle_fsd.training.harm_fit import areas, fit, read_forks, reliability, shares

    settings = [made for made, _, _ in mined.values()]
    config = load.load_target_config(target)
    head = load.load_head(own, config, target=target)
    loaded, _ = load.load_target(
        target,
        dtype=settings[0]["dtype"],
        device=options.device,
        feature_layers=head.config.fused_layers(config.num_hidden_layers),
    )
    data = {folder: read_forks(loaded, *of) for folder, (_, *of) in mined.items()}
    embedding = loaded.embed_tokens.weight.shape[1]
    states = loaded.hidden_size * (len(loaded.feature_layers) or 1)
    sizes = HarmConfig(states, embedding, loaded.feature_layers, options.hidden)
    learnt = data[options.forks]
    model = fit(learnt, sizes, seed=options.seed)
    alone = fit(learnt, sizes, states=False, seed=options.seed)
    models = {"the model": model, "all signals without states": alone}
    data[options.forks] = learnt.part("report")
    report = {
        folder: {
            "forks": shares(mined[folder][2]),
            "areas": areas(forks, models),
            "reliability": reliability(forks, model),
        }
        for folder, forks in data.items()
    }
    figures = {"learnt_from": len(learnt.part("learn").questions), "report": report}
    write_model(model, options.output, made_for=digests, **figures)
    record = {"options": asdict(options), "forks_of": settings, "report": report}
    write_json(Path(options.output) / "report.json", record | describe_run(options.device))
    text = shown(report)
    write_file(Path(options.output) / "report.md", text)
    print(f"\n{text}\nthe model of harm is in {options.output}")


def read_folder(folder: str) -> tuple[dict, dict, list[dict]]:
    """How a folder of forks was made, its texts by question, its forks."""
    from eagle_fsd.runs.jsonl import read_json, read_lines

    records = Path(folder) / "records"
    if not (records / "forks.jsonl").is_file():
        raise BadInput(f"no forks in {folder}: make them with train/mine_forks.py")
    (made,) = read_json(Path(folder) / "run.json", options=dict)
    texts = {(row["question_id"], 0): row for row in read_lines(records / "texts.jsonl")}
    return made, texts, read_lines(records / "forks.jsonl")


def shown(report: dict[str, dict]) -> str:
    """The report as Markdown."""
    from eagle_fsd.evaluation.tables import columns, markdown_table

    counted = columns(category="s", kind="s", questions="d", forks="d", harm=".3f")
    compared = columns(signal="s", forks="d", questions="d", harmful=".3f")
    compared += [
        ("area under the ROC curve", "area", ".3f"),
        ("the model's - this", "ahead", ".3f"),
    ]
    found = columns(forks="d", foreseen=".3f", found=".3f")
    parts = []
    for number, (name, of) in enumerate(report.items()):
        unseen = "another task" if number else "questions that it has not seen"
        parts += [f"All forks of {name}:", markdown_table(of["forks"], counted)]
        parts += [f"Drafted forks of {name}, {unseen}:", markdown_table(of["areas"], compared)]
        parts += ["Their chance of harm, foreseen and found:"]
        parts += [markdown_table(of["reliability"], found)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    run_command(train_harm, [HarmOptions])
