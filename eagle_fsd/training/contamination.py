"""Which benchmark, if any, a training prompt repeats.

benchmark_hashes.txt holds 64-bit hashes of the prompts of MT-Bench (both turns), HumanEval, the
GSM8K test set and IFEval, so that no benchmark need be at hand. It was made by

    write_hashes(HASHES, {"mt_bench": turns, "humaneval": ..., "gsm8k_test": ..., "ifeval": ...})

Of Spec-Bench it covers the MT-Bench and GSM8K parts. Its other four (WMT14, CNN/DailyMail, Natural
Questions, DPR) are NOT in it; give make_data.py's --exclude their question file to drop them too.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

HASHES = Path(__file__).with_name("benchmark_hashes.txt")
WINDOW = 13  # words; the length at which GPT-3's authors called an overlap contamination


class Benchmarks:
    """Prompts that must not be trained on, by the benchmark's name."""

    def __init__(self, hashes: dict[str, set[str]]):
        self._name_of: dict[str, str] = {}
        for name, members in hashes.items():
            for member in members:
                self._name_of.setdefault(member, name)

    def find(self, text: str) -> str | None:
        """Name of the benchmark of which `text` repeats a prompt, or None.

        Compared are words without case and punctuation. A benchmark prompt shorter than 13 words
        must be the whole text; of a longer one its first 13 words must occur in the text.
        """
        words = _words(text)
        for start in range(max(1, len(words) - WINDOW + 1)):
            name = self._name_of.get(_hash(words[start : start + WINDOW]))
            if name:
                return name
        return None


def load_benchmarks(others: dict[str, Iterable[str]] | None = None) -> Benchmarks:
    """The benchmarks of benchmark_hashes.txt, and others given as name -> prompts."""
    hashes: dict[str, set[str]] = {}
    for line in HASHES.read_text().splitlines():
        if line.startswith("# "):
            members = hashes.setdefault(line[2:], set())
        else:
            members.add(line)
    for name, prompts in (others or {}).items():
        hashes[name] = hash_prompts(prompts)
    return Benchmarks(hashes)


def hash_prompts(prompts: Iterable[str]) -> set[str]:
    """16 hex digits a prompt: of its first 13 words, or of all if it has fewer."""
    return {_hash(words[:WINDOW]) for prompt in prompts if (words := _words(prompt))}


def write_hashes(path: Path, prompts: dict[str, Iterable[str]]) -> None:
    """Write a file like benchmark_hashes.txt."""
    lines = []
    for name, texts in prompts.items():
        lines += [f"# {name}", *sorted(hash_prompts(texts))]
    path.write_text("\n".join(lines) + "\n")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _hash(words: list[str]) -> str:
    return blake2b(" ".join(words).encode(), digest_size=8).hexdigest()
