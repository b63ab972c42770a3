"""A tiny target with recurrent layers that has learnt something: short answers to made questions.

    python scripts/analysis/tiny_hybrid.py --output runs/tiny_hybrid/target

Of the shape of Qwen3.5 (gated delta nets, each fourth layer attention), a token a byte. It is
trained from nothing for some minutes on a CPU, on questions that ask to count, to spell or to say
words again, and stored as any other target: 30 questions of the same kinds, which it has not seen,
lie beside it in FastChat's format.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from tqdm import trange
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3_5TextConfig

from eagle_fsd.cli import option, run_command

CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
WORDS = (
    "apple river stone cloud table green winter yellow garden candle bridge silver pocket mirror "
    "summer button letter window orange forest"
).split()
HELD_OUT, ROWS = 30, 12


@dataclass
class TinyHybridOptions:
    output: str = option("runs/tiny_hybrid/target", "The folder of the target.")
    steps: int = option(400, "Training steps, of 12 dialogues each.")
    seed: int = option(0, "Seed of weights and questions.")


def question(rng: random.Random) -> tuple[str, str]:
    """A question, and its answer."""
    kind = rng.randrange(3)
    if kind == 0:
        first, count = rng.randrange(1, 80), rng.randrange(5, 12)
        numbers = ", ".join(str(first + i) for i in range(count))
        return f"Count from {first} to {first + count - 1}.", f"Here you are: {numbers}."
    if kind == 1:
        word = rng.choice(WORDS)
        return f"Spell {word}.", f"The word {word} is spelt {'-'.join(word)}."
    words = rng.sample(WORDS, rng.randrange(3, 6))
    said = " and ".join(words)
    return f"Say {' '.join(words)}.", f"You asked me to say {said}."


def byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<s>": 0, "</s>": 1} | {char: i for i, char in enumerate(alphabet, start=2)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make(options: TinyHybridOptions) -> None:
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    folder, tokenizer = Path(options.output), byte_tokenizer()
    config = Qwen3_5TextConfig(
        vocab_size=258,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=2,
        linear_key_head_dim=32,
        linear_value_head_dim=64,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    held_out = {}
    while len(held_out) < HELD_OUT:
        asked, answer = question(rng)
        held_out[asked] = answer
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=options.steps)
    for step in (bar := trange(options.steps, desc="training")):
        talks = []
        while len(talks) < ROWS:
            asked, answer = question(rng)
            if asked not in held_out:
                turns = {"user": asked, "assistant": answer}
                talks.append([{"role": role, "content": text} for role, text in turns.items()])
        ids = [tokenizer.apply_chat_template(talk, return_dict=False) for talk in talks]
        length = max(map(len, ids))
        token_BT = torch.tensor([row + [1] * (length - len(row)) for row in ids])
        seen_BT = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids]).bool()
        logits_BTV = model(input_ids=token_BT, use_cache=False).logits
        seen_BT = seen_BT[:, 1:]
        loss = cross_entropy(logits_BTV[:, :-1][seen_BT], token_BT[:, 1:][seen_BT])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rows = [
        {"question_id": i, "category": "made", "turns": [asked]}
        for i, asked in enumerate(held_out, start=1)
    ]
    (folder / "question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"The target is in {folder}; its loss was {loss.item():.3f} nats a byte at the end.")


if __name__ == "__main__":
    run_command(make, [TinyHybridOptions])
