"""Files of a target that transformers takes though they are broken, or does silently without; of
all others it says so itself. Each check raises a ValueError, or what such content makes Python say.
"""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME, cached_file

LOST = 0.02  # share of words that no merge makes, such as those that were added, in a whole file


def read_text(path: str, name: str) -> str | None:
    """Of a file of a folder or hub id; None: it has none."""
    file = cached_file(path, name, _raise_exceptions_for_missing_entries=False)
    return Path(file).read_text(encoding="utf-8") if file else None


def check_generation(path: str) -> None:
    """Of one that is cut off transformers makes a new one, which ends answers elsewhere."""
    text = read_text(path, GENERATION_CONFIG_NAME)
    try:
        eos = None if text is None else json.loads(text).get("eos_token_id")
    except ValueError as error:
        raise ValueError(f"{GENERATION_CONFIG_NAME} is cut off: {error}") from error
    if not all(type(token) is int for token in (eos if isinstance(eos, list) else [eos or 0])):
        raise ValueError(f"{GENERATION_CONFIG_NAME} has the eos_token_id {eos!r}")


def check_tokenizer(path: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """A vocabulary or a chat template that is empty, and the two files of a byte-pair vocabulary,
    of which tokenizers reads what it can."""
    if not tokenizer.encode("a", add_special_tokens=False):  # which meets all settings too
        raise ValueError("its vocabulary holds no words")
    template = tokenizer.chat_template
    templates = template.values() if isinstance(template, dict) else [template]
    if any(text is not None and not text.strip() for text in templates):
        raise ValueError("its chat template is empty")
    names = ("tokenizer.json", "vocab.json", "merges.txt")
    whole, words, merges = (read_text(path, name) for name in names)
    if whole is None and words is not None and merges is not None:
        ids = json.loads(words)
        if not all(type(number) is int for number in ids.values()):
            raise ValueError("vocab.json has ids that are no integers")
        made = {"".join(line.split()) for line in merges.splitlines()}
        marks = {word for word in ids if len(word) < 2 or word.startswith("<") and word[-1] == ">"}
        longer = ids.keys() - marks - tokenizer.added_tokens_encoder.keys()
        if len(lost := longer - made) > LOST * len(longer):
            raise ValueError(f"merges.txt makes {len(lost)} words of vocab.json not: it is cut off")
