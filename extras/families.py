"""Which causal families of the installed transformers decode draft trees exactly: all, by trial.

    python extras/families.py                            # a quarter of an hour on one core
    python extras/families.py --families llama phi3      # a few, to look at
    python extras/families.py --quick                    # one prompt of each

Of every family a tiny random model (tiny_families.py) is stored, loaded as any target is, with its
check, by every engine but `compiled`, and decoded in float32 at temperature 0: without drafts and
with exact trees of n-grams, of a drafter that knows the answer and errs often, and of random EAGLE
and EAGLE-3 heads. Every answer must be that of transformers' own `generate`, token for token.

Each family has a process and a result file of its own in --output, so that a crash ends that family
alone. A run over all families writes results/families: families.csv, and the tables of its page.
"""

import copy
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from families_tables import write_tables
from tiny_families import FAMILIES, VOCAB, has_window, tiny_config, tiny_model
from tqdm import tqdm

from eagle_fsd.arms import parse_arm
from eagle_fsd.cli import run_command
from eagle_fsd.config import BadInput, SamplingConfig, TreeConfig, check_known, one_line
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import GREEDY, Drafter, DraftTree
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.models.load import load_head, load_target, load_target_config
from eagle_fsd.models.loaded import Model
from eagle_fsd.models.weights import random_tokenizer
from eagle_fsd.options import option
from eagle_fsd.runs.jsonl import write_json

ENGINES = ("stock", "folded", "packed")
PROMPTS, WINDOWS = (5, 40, 420), (8, 340)  # tokens
BUDGET = 12
TREE = TreeConfig(7, 3, 3)
LONGEST_S = 300  # of the processor's time; a family's process is ended then
TIE = 1e-4  # of the logits' spread: two tokens so close may be exchanged by another kernel


@dataclass
class FamiliesOptions:
    families: list[str] = option([], "model types of transformers; none: all that are causal")
    quick: bool = option(False, "one prompt of each, the longest")
    output: str = option("runs/families", "folder of the result files")


class KnowingDrafter(Drafter):
    """Trees of three levels in which the answer's tokens stand at random places, or do not."""

    max_nodes = 10

    def __init__(self, text: list[int]):
        self._text = text  # of the prompt and its answer

    def begin(
        self, capacity: int, first_token: int, sampling: SamplingConfig = GREEDY, seed: int = 0
    ) -> "KnowingDrafter":
        own = copy.copy(self)
        own._length, own._random = 1, random.Random(seed)
        return own

    def observe(self, features_TF, next_tokens, logits_NV=None) -> None:
        self._length += len(next_tokens)
        self._root = next_tokens[-1]

    def propose(self) -> DraftTree:
        tokens, parents, parent = [self._root], [0], 0
        for known in (self._text[self._length :] + [0, 0, 0])[:3]:
            level = self._random.sample(range(VOCAB), 3)
            place = self._random.randrange(3)
            if known not in level and self._random.random() < 0.8:
                level[place] = known
            tokens += level
            parents += [parent] * 3
            parent = len(tokens) - 3 + place
        return DraftTree.from_parents(tokens, parents)


class Reference:
    """The model as transformers runs it, and its answers."""

    def __init__(self, model: transformers.PreTrainedModel):
        self._model = model
        model.generation_config = transformers.GenerationConfig()

    def answer(self, prompt: list[int]) -> list[int]:
        output = self._model.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=BUDGET, pad_token_id=0
        )
        return output[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def fault(self, prompt: list[int], ours: list[int], theirs: list[int]) -> str:
        """Where the answers part, if not at a tie of the two tokens."""
        parted = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
        if not parted:
            return "" if len(ours) == len(theirs) else f"{len(ours)} tokens, not {len(theirs)}"
        at = parted[0]
        logits_V = self._model(torch.tensor([prompt + theirs[:at]])).logits[0, -1]
        gap = ((logits_V[theirs[at]] - logits_V[ours[at]]).abs() / logits_V.std()).item()
        return "" if gap < TIE else f"token {at} of {BUDGET} differs, {gap:.1g} deviations apart"


def decodes(target: Target, folder: str, text: list[int], notes: set[str]) -> Iterator[tuple]:
    """Of each way to draft, its name and drafter; notes: why a head cannot be made."""
    yield "plain", parse_arm("plain").build_drafter(Model(target, None, None))
    yield "ngram", parse_arm("exact@ngram").build_drafter(Model(target, None, None))
    yield "noisy tree", KnowingDrafter(text)
    for kind in ("eagle", "eagle3"):
        try:
            head = load_head(f"random:{kind}", config := load_target_config(folder))
        except (BadInput, TypeError, AttributeError, ValueError) as error:
            notes.add(f"no {kind} head: {one_line(error)}")
            continue
        target.feature_layers = head.config.fused_layers(config.num_hidden_layers)
        yield kind, head_drafter(head, target, TREE)
        target.feature_layers = ()


def try_engine(
    engine: str, folder: str, reference: Reference, answers: dict, result: dict, where: str
) -> None:
    """Add what an engine gave to the result: refused, failed, wrong, or exact so far."""
    mine = result["engines"].setdefault(engine, {"outcome": "exact", "reason": "", "decodes": 0})
    notes: set[str] = set(result["notes"])
    name = "loading"
    try:
        target, _ = load_target(folder, dtype="float32", engine=engine, keep_stock=False)
        if target.engine.name != engine:
            raise BadInput(f"engine {engine} became {target.engine.name}")
        for length, (prompt, expected) in answers.items():
            if not expected:
                expected += reference.answer(prompt)
            for name, drafter in decodes(target, folder, prompt + expected, notes):
                arm = parse_arm("plain" if name == "plain" else "exact")
                config = DecodeConfig(arm.policy(SamplingConfig(0.0)), StopConfig(BUDGET))
                ours = decode(target, drafter, prompt, config).tokens
                mine["decodes"] += 1
                if fault := reference.fault(prompt, ours, expected):
                    worse(mine, "wrong", f"{name}, prompt {length}{where}: {fault}")
                    return
    except BadInput as error:
        why = str(error).replace(folder, "FOLDER")
        if name == "eagle3":  # a family is no other for a head that it cannot have
            notes.add(f"no eagle3 head: {why}")
        else:
            worse(mine, "refused", why)
    except Exception as error:  # whatever a family does is its result
        traceback.print_exc()
        worse(mine, "failed", f"{name}{where}: {one_line(error)}")
    finally:
        result["notes"] = sorted(notes)


def worse(mine: dict, outcome: str, reason: str) -> None:
    """Take an engine's outcome for its result if it is worse than what is known."""
    order = "exact", "refused", "failed", "wrong"
    if order.index(outcome) > order.index(mine["outcome"]):
        mine |= {"outcome": outcome, "reason": reason}


def try_family(family: str, quick: bool) -> dict:
    """All that is found out about a family."""
    result = {"family": family, "engines": {}, "bfloat16": "", "notes": [], "not_built": ""}
    try:
        windows = WINDOWS if has_window(tiny_config(family)) else (0,)
        for window in windows:
            model = tiny_model(tiny_config(family, window=window), seed=len(family))
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                random_tokenizer().save_pretrained(folder)
                one_window(folder, model, result, f", window {window}" if window else "", quick)
    except Exception as error:  # a family's config and class raise what they like
        traceback.print_exc()
        result["not_built"] = one_line(error)
    return result


def one_window(
    folder: str, model: transformers.PreTrainedModel, result: dict, where: str, quick: bool
) -> None:
    """Every engine on the model that is stored in the folder."""
    reference, prompts = Reference(model), random.Random(7)
    answers = {
        length: ([prompts.randrange(3, VOCAB) for _ in range(length)], [])
        for length in (PROMPTS[-1:] if quick else PROMPTS)
    }
    for engine in ENGINES:
        try_engine(engine, folder, reference, answers, result, where)
    if result["engines"]["stock"]["outcome"] == "exact" and result["bfloat16"] in ("", "taken"):
        try:
            load_target(folder, dtype="bfloat16", engine="stock")
            result["bfloat16"] = "taken"
        except BadInput as error:
            result["bfloat16"] = str(error)


def work(family: str, folder: Path, quick: bool) -> None:
    """The process of a family: its result file, and beside it what was printed."""
    with (folder / f"{family}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
        began = time.time()
        result = try_family(family, quick)
        seconds = round(time.time() - began, 1)
        write_json(folder / f"{family}.json", result | {"seconds": seconds})


def run(options: FamiliesOptions) -> None:
    folder, families = Path(options.output), list(options.families) or FAMILIES
    for family in families:
        check_known("family", family, FAMILIES)
    folder.mkdir(parents=True, exist_ok=True)
    results, forked = [], multiprocessing.get_context("fork")  # so that nothing is imported anew
    bar = tqdm(families, desc="families", disable=None)
    for family in bar:
        bar.set_postfix_str(family)
        file = folder / f"{family}.json"
        file.unlink(missing_ok=True)
        process = forked.Process(target=work, args=(family, folder, options.quick))
        process.start()
        process.join()
        if not file.exists():
            ended = f"crashed: its process ended with {process.exitcode} in {LONGEST_S} s at most"
            result = {"family": family, "engines": {}, "bfloat16": "", "notes": []}
            write_json(file, result | {"not_built": ended, "seconds": None})
        results.append(json.loads(file.read_text()))
    write_tables(results, everything=families == FAMILIES and not options.quick)


if __name__ == "__main__":
    run_command(run, [FamiliesOptions])
