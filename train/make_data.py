"""Make training dialogues: prompts from the target itself or from data, answers by the target.

    python train/make_data.py --output data.jsonl --sources self=0.6 prompts.jsonl=0.4 \\
        --answer_tokens 1000000

One dialogue a line, as token ids and a mask of the assistant's tokens; data.json beside it records
how it was made. A killed run continues: run the same command again; a larger budget goes on where a
smaller one ended. Several processes: `torchrun --nproc_per_node N train/make_data.py ...`; each
writes data.partK.jsonl, and the first puts them together.
"""

from eagle_fsd.runs.command import run_command
from eagle_fsd.training.data_options import DataOptions


def make_data(options: DataOptions) -> None:
    from eagle_fsd.training.dialogue_run import make_dialogues

    record = make_dialogues(options)
    if record is not None:
        print_summary(options.output, record)


def print_summary(output: str, record: dict) -> None:
    rate, dropped = record["tokens_per_s"], record["dropped"]
    repeated = sum(n for reason, n in dropped.items() if reason.startswith("in "))
    lines = {
        "dialogues": f"{record['dialogues']}",
        "answer tokens": f"{record['answer_tokens']}",
        "tokens with prompts": f"{record['tokens']}",
        "answer tokens/s": f"{rate:.0f}" if rate else "none",
        "share finished": f"{record['share_finished']:.2f}",
        "peak memory": f"{record['peak_memory_mb']} MB",
    }
    lines |= {f"from {name}": f"{n}" for name, n in record["by_source"].items()}
    lines["dropped as benchmark prompts"] = f"{repeated}"
    lines |= {f"dropped, {reason}": f"{n}" for reason, n in dropped.items()}
    print(f"data: {output}")
    for name, value in lines.items():
        print(f"  {name:32} {value}")


def main(arguments: list[str] | None = None) -> None:
    run_command(make_data, [DataOptions], arguments)


if __name__ == "__main__":
    main()
