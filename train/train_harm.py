"""Train the model of harm, by which the rule `harm` and the cost of `path:b,cost=harm` go.

    python train/train_harm.py --forks forks --output runs/harm

It learns from forks of mine_forks.py, in seconds once the target's states are computed, and is a
folder for --harm. report.json and report.md say, for questions that it has not seen, how well it
tells harmful forks apart: the area under the ROC curve beside those of single signals and of a
model that reads all signals but no states, and whether its chances are what is found.
"""

from dataclasses import dataclass, field

from eagle_fsd.cli import option, run_command
from eagle_fsd.config import BadInput, check_least


@dataclass
class HarmOptions:
    forks: str = field(metadata={"help": "A folder of mine_forks.py."})
    output: str = field(metadata={"help": "The folder to write the model to."})
    other: str = option(
        "", "A folder of forks of another task, on which the model is reported too."
    )
    hidden: int = option(0, "The size of a hidden layer. 0: none, the model is logistic.")
    seed: int = option(0, "The seed of its first weights.")
    device: str = option("", "The torch device. Empty: cuda if there is one, else cpu.")

    def __post_init__(self):
        import torch

        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_least(self, "--", hidden=0, seed=0)


def train_harm(options: HarmOptions) -> None:
    from pathlib import Path

    from eagle_fsd.evaluation.tables import columns, markdown_table
    from eagle_fsd.heads.harm_model import HarmConfig, write_model
    from eagle_fsd.models import load
    from eagle_fsd.runs.jsonl import read_json, read_lines, write_file, write_json
    from eagle_fsd.training.harm_fit import areas, fit, read_forks, reliability

    folders = [Path(folder) for folder in (options.forks, options.other) if folder]
    settings = []
    for folder in folders:
        if not (folder / "records" / "forks.jsonl").is_file():
            raise BadInput(f"no forks in {folder}: make them with train/mine_forks.py")
        (made,) = read_json(folder / "run.json", options=dict)
        settings.append(made)
    if len({(made["target"], made["head"]) for made in settings}) > 1:
        raise BadInput("--other holds forks of another target or head: mine it with the same")
    made = settings[0]
    config = load.load_target_config(made["target"])
    head = load.load_head(
        made["head"] or load.default_head(made["target"]), config, target=made["target"]
    )
    target, _ = load.load_target(
        made["target"],
        dtype=made["dtype"],
        device=options.device,
        feature_layers=head.config.fused_layers(config.num_hidden_layers),
    )
    data = []
    for folder in folders:
        texts = read_lines(folder / "records" / "texts.jsonl")
        rows = read_lines(folder / "records" / "forks.jsonl")
        data.append(read_forks(target, {(row["question_id"], 0): row for row in texts}, rows))
    embedding = target.embed_tokens.weight.shape[1]
    size = data[0].input_CW.shape[1]
    sizes = HarmConfig(head.config.feature_size, embedding, target.feature_layers, options.hidden)
    if sizes.width != size:
        raise BadInput(f"forks of width {size}, the model reads {sizes.width}: mine them again")
    model = fit(data[0], sizes, seed=options.seed)
    alone = fit(data[0], sizes, states=False, seed=options.seed)
    models = {"the model": model, "all signals without states": alone}
    report = {"areas": areas(data[0].part("report"), models)}
    report["reliability"] = reliability(data[0].part("report"), model)
    if options.other:
        report["areas_other"] = areas(data[1], models)
    write_model(model, options.output, forks=len(data[0].questions), areas=report["areas"])
    write_json(Path(options.output) / "report.json", report)
    shown = columns(signal="s", forks="d", questions="d", harmful=".3f")
    shown.append(("area under the ROC curve", "area", ".3f"))
    parts = ["Questions that it has not seen:", markdown_table(report["areas"], shown)]
    if options.other:
        parts += ["The other task:", markdown_table(report["areas_other"], shown)]
    wide = columns(forks="d", foreseen=".3f", found=".3f")
    parts += ["Chance of harm, foreseen and found:", markdown_table(report["reliability"], wide)]
    text = "\n\n".join(parts) + "\n"
    write_file(Path(options.output) / "report.md", text)
    print(f"\n{text}\nthe model of harm is in {options.output}")


if __name__ == "__main__":
    run_command(train_harm, [HarmOptions])
