"""How often an MTP layer's most probable token is the target's, level by level, on held-out texts.

    python scripts/analysis/mtp_levels.py --target runs/mtp/target --texts runs/mtp/held_out.jsonl \
        --heads runs/mtp/one_step runs/mtp/unrolled --output runs/mtp/levels.json

Texts are the target's own greedy answers (tiny_mtp_target.py). At level d the layer has drafted the
d - 1 tokens before, which are the text's; its acceptance there is the share of places at which its
next one is the text's too. Levels 2 to 4 are averaged; intervals are over texts, and so are the
differences, which are paired, to the first head.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from eagle_fsd.cli import option, run_command

LEVELS, RECURRENT = 6, (2, 3, 4)


@dataclass
class LevelOptions:
    target: str = field(metadata={"help": "The folder of the target."})
    texts: str = field(metadata={"help": "The file of texts."})
    heads: list[str] = field(metadata={"help": "MTP layers: mtp, or folders of train_head.py."})
    output: str = option("", "A JSON file to write. Empty: none.")


def run(options: LevelOptions) -> None:
    from eagle_fsd.config import SMALL_TREE
    from eagle_fsd.drafters.eagle import head_drafter
    from eagle_fsd.evaluation.texts import judge_levels
    from eagle_fsd.models.load import load_head, load_target, load_target_config
    from eagle_fsd.runs.jsonl import write_json
    from eagle_fsd.runs.provenance import describe_run
    from eagle_fsd.stats import paired_difference, rate_interval, share_interval

    target, _ = load_target(options.target, dtype="float32")
    config = load_target_config(options.target)
    texts, rows, first = read_texts(options.texts), {}, None
    for name in options.heads:
        drafter = head_drafter(load_head(name, config, target=options.target), target, SMALL_TREE)
        judged, rounds = [], []
        for text in texts:
            states = text.states(target)
            judged.append(judge_levels(drafter, text, *states, levels=LEVELS))
            rounds.append(text.rounds(drafter, states[1]))
        by_level = [
            share_interval(
                [(counts[level]["top1"], counts[level]["positions"]) for counts in judged]
            )
            for level in range(LEVELS)
        ]
        own = [
            sum(counts[n - 1]["top1"] / counts[n - 1]["positions"] for n in RECURRENT)
            / len(RECURRENT)
            for counts in judged
        ]
        first = first or own
        rows[name] = {
            "levels": by_level,
            "levels_2_to_4": share_interval([(value, 1) for value in own]),
            "over_the_first": paired_difference(own, first),
            "tokens_per_round": rate_interval([(sum(each), len(each)) for each in rounds]),
        }
        shown = " ".join(f"{level['value']:.3f}" for level in by_level)
        deep, over, rate = (said(rows[name][key]) for key in list(rows[name])[1:])
        print(f"{name}: levels {shown}; 2 to 4 {deep}, over the first {over}; tokens/round {rate}")
    if options.output:
        write_json(Path(options.output), {"texts": len(texts), "heads": rows} | describe_run("cpu"))


def said(found: dict) -> str:
    bounds = "" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]"
    return f"{found['value']:.3f}{bounds}"


def read_texts(path: str) -> list:
    """The texts, whose last tokens are looked ahead at only."""
    from eagle_fsd.drafters.walk import TOKENS_BEYOND_END, PlainText

    texts = []
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        ids, prompt = row["input_ids"], row["loss_mask"].count(0)
        end = len(ids) - TOKENS_BEYOND_END
        texts.append(PlainText(ids[:prompt], ids[prompt:end], ids[end:]))
    return texts


def main(arguments: list[str] | None = None) -> None:
    run_command(run, [LevelOptions], arguments)


if __name__ == "__main__":
    main()
