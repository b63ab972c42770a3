"""A tiny target that has learnt a text, with an MTP layer that has learnt nothing, and its texts.

    python scripts/analysis/tiny_mtp_target.py --family qwen2 --output runs/mtp/qwen2/target
    python scripts/analysis/tiny_mtp_target.py ... --texts runs/mtp/qwen2

The first command trains the target on sentences of a small grammar (words as
tokens), and writes it as a checkpoint of its family with an MTP layer of random weights. The second
lets it write: data.jsonl, drawn at temperature 1, for train_head.py, and held_out.jsonl, greedy
answers to other prompts, for mtp_levels.py. scripts/mtp_recurrence.sh runs both.
"""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from tqdm import tqdm, trange
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from eagle_fsd.cli import option, run_command
from eagle_fsd.config import BadInput, check_known
from eagle_fsd.drafters.walk import TOKENS_BEYOND_END
from eagle_fsd.heads.mtp_families import FAMILIES
from eagle_fsd.heads.mtp_files import stored_tensors
from eagle_fsd.heads.mtp_head import MtpHead, new_config

SIZES = {
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MLA = {
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
}
EXPERTS = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
DELTA = {
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}
SHAPES = {"qwen2": {}, "qwen3_5_text": DELTA, "deepseek_v3": MLA | EXPERTS}
WINDOW, PROMPT, ANSWER = 96, 24, 72  # words
BATCH = 32
PEAK, WARMUP = 3e-3, 0.05

NAMES = "Anna Bela Carlo Dora Emil Fatima Goran Hanna Ivo Jana Karim Lena Mira Nils".split()
THINGS = "apple pear plum cherry melon lemon carrot onion radish turnip bean pumpkin".split()
COLOURS = "red green yellow small large old fresh sweet".split()
PLACES = "market kitchen garden cellar station harbour".split()


@dataclass
class TinyOptions:
    output: str = field(metadata={"help": "The folder of the target."})
    family: str = option("qwen2", "The family: qwen2 (MiMo), qwen3_5_text or deepseek_v3.")
    steps: int = option(400, "The steps that the target is trained.")
    texts: str = option("", "The folder to write texts of a target that is there. Empty: train it.")
    answers: int = option(1500, "The number of texts for training.")
    held_out: int = option(64, "The number of texts that are kept from training.")
    seed: int = option(0, "The seed of weights and texts.")

    def __post_init__(self):
        check_known("family", self.family, SHAPES)
        if bool(self.texts) != Path(self.output, "config.json").is_file():
            raise BadInput(f"--output {self.output} must hold a target if --texts is given, only")


def sentences(rng: random.Random) -> list[str]:
    """A few sentences about two people and a place; later ones take up what earlier ones said."""
    name, other = rng.sample(NAMES, 2)
    place = rng.choice(PLACES)
    held = {rng.choice(THINGS): rng.randint(2, 9) for _ in range(rng.randint(1, 3))}
    colour = {thing: rng.choice(COLOURS) for thing in held}
    counted = " and ".join(f"{held[thing]} {colour[thing]} {thing}" for thing in held)
    said = [f"{name} went to the {place} with {counted} ."]
    for thing in rng.sample([*held], len(held)):
        given = rng.randint(1, held[thing] - 1)
        left = held[thing] - given
        ways = (
            f"{name} gave {given} {colour[thing]} {thing} to {other} , so {left} were left .",
            f"in the {place} {other} asked {name} for the {colour[thing]} {thing} .",
            f"then {name} ate {given} of the {held[thing]} {thing} and kept {left} .",
        )
        said.append(rng.choice(ways))
    ends = (
        f"after that {name} and {other} left the {place} together .",
        f"{other} said : thank you , {name} , for the {counted} .",
    )
    return " ".join([*said, rng.choice(ends)]).split()


def word_ids() -> dict[str, int]:
    """The vocabulary: every word that the sentences have."""
    rng = random.Random(0)
    words = {word for _ in range(3000) for word in sentences(rng)}
    return {word: number for number, word in enumerate(sorted(words))}


def text_ids(rng: random.Random, ids: dict[str, int], length: int) -> list[int]:
    """So many words of sentences, from the beginning of one on."""
    words: list[str] = []
    while len(words) < length:
        words += sentences(rng)
    return [ids[word] for word in words[:length]]


def word_tokenizer(ids: dict[str, int]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel(ids))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def trained(config: PretrainedConfig, options: TinyOptions) -> PreTrainedModel:
    """A new model after so many steps of next-word cross-entropy."""
    torch.manual_seed(options.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    rng, words = random.Random(options.seed), word_ids()
    for step in (bar := trange(options.steps, desc="target")):
        done = step / options.steps
        for group in optimizer.param_groups:
            group["lr"] = PEAK * min((step + 1) / options.steps / WARMUP, 1 - 0.95 * done)
        ids_BT = torch.tensor([text_ids(rng, words, WINDOW) for _ in range(BATCH)])
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits
        loss = nn.functional.cross_entropy(
            logits_BTV[:, :-1].flatten(0, 1), ids_BT[:, 1:].flatten()
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bar.set_postfix_str(f"{loss.item():.3f} nats a word")
    return model.eval()


def new_layer(config: PretrainedConfig, seed: int) -> MtpHead:
    """An MTP layer of random weights for a target."""
    head = MtpHead(new_config(config, FAMILIES[config.model_type], 1)).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    neutral = type(head.norms[0])(1, eps=1e-6).weight.item()  # of the family's norms
    for name, tensor in head.state_dict().items():
        if "norm" in name:
            tensor.fill_(neutral)
        elif tensor.ndim == 1:  # biases
            tensor.zero_()
        else:
            tensor.normal_(0, 0.02, generator=generator)
    return head


def write_target(options: TinyOptions) -> None:
    ids = word_ids()
    sizes = SIZES | SHAPES[options.family] | {"vocab_size": len(ids)}
    config = AutoConfig.for_model(options.family, **sizes)
    folder = Path(options.output)
    trained(config, options).save_pretrained(folder)
    word_tokenizer(ids).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    with torch.no_grad():
        tensors |= stored_tensors(new_layer(config, options.seed))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@torch.inference_mode()
def write_texts(options: TinyOptions) -> None:
    model = AutoModelForCausalLM.from_pretrained(options.output, dtype=torch.float32).eval()
    torch.manual_seed(options.seed)
    words = word_ids()
    kinds = {
        "data.jsonl": (options.answers, {"do_sample": True, "top_k": 0}, 1),
        "held_out.jsonl": (options.held_out, {"do_sample": False}, 2),
    }
    for name, (count, how, seed) in kinds.items():
        rng, rows = random.Random(1000 * seed + options.seed), []
        Path(options.texts).mkdir(parents=True, exist_ok=True)
        for start in tqdm(range(0, count, BATCH), desc=name):
            size = min(BATCH, count - start)
            prompt_BT = torch.tensor([text_ids(rng, words, PROMPT) for _ in range(size)])
            new = ANSWER + (0 if how["do_sample"] else TOKENS_BEYOND_END)
            length = {"max_new_tokens": new, "pad_token_id": 0, "eos_token_id": None}
            mask = torch.ones_like(prompt_BT)
            rows += model.generate(prompt_BT, attention_mask=mask, **how, **length).tolist()
        lines = [
            {"input_ids": ids, "loss_mask": [0] * PROMPT + [1] * (len(ids) - PROMPT)}
            for ids in rows
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        Path(options.texts, name).write_text(text)


def main(arguments: list[str] | None = None) -> None:
    def run(options: TinyOptions) -> None:
        write_texts(options) if options.texts else write_target(options)

    run_command(run, [TinyOptions], arguments)


if __name__ == "__main__":
    main()
