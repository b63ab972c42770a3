"""A small target that solves made problems well, so that lost quality can be seen in few of them.

    python scripts/analysis/made_problems.py --output runs/made_problems/target

Sums in words, sorting and counting, each at three lengths of reasoning, with answers of at most 42
tokens that end with a number. The wording of an answer is drawn from several, so that some of its
tokens may be others without harm, and the digits may not. A target of 2 million parameters is
trained from nothing on such problems, within an hour of a CPU, and stored as bfloat16 values like
any other. Beside it lie four sets of problems that it has not seen, in FastChat's format with the
right number as reference: test.jsonl, choice.jsonl, forks.jsonl, and prompts.jsonl for its head. A
killed run goes on from its last checkpoint: run the same command again.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from eagle_fsd.cli import option, run_command
from eagle_fsd.runs.jsonl import write_file

CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
NAMES = "Anna Ben Clara David Emma Felix Greta Hugo Ida Jonas".split()
THINGS = "apples stones books coins cards shells pencils stamps eggs nuts".split()
WORDS = "river lamp horse cloud garden spoon tower violin bread window".split()
MORE = ("gets {} more", "finds {} more", "buys {} more", "is given {} more")
FEWER = ("loses {}", "gives away {}", "sells {}", "breaks {}")
PLACES = ("first", "second", "third", "fourth", "fifth")
LENGTHS = 3
SETS = {"test": 2000, "choice": 300, "forks": 3000, "prompts": 4000}
VOCABULARY, ROWS, PARTS, SAVE_EVERY = 512, 32, 4, 250

Problem = tuple[str, str, int]  # question, answer, the number that it ends with


@dataclass
class MadeProblemsOptions:
    output: str = option("runs/made_problems/target", "The folder of the target.")
    steps: list[int] = option(
        [2400, 1200],
        "Training steps, of 32 problems each; each number is a rise and fall of the learning rate.",
    )
    seed: int = option(0, "Seed of weights and problems.")


def sums(rng: random.Random, length: int) -> Problem:
    """Something is added or taken away, `length` times."""
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    total = rng.randrange(1, 100)
    story, steps = [f"{name} has {total} {things}."], []
    for _ in range(length):
        number = rng.randrange(1, 50)
        less = total + number > 99 or (number <= total and rng.random() < 0.5)
        story.append(f"{name} {rng.choice(FEWER if less else MORE).format(number)}.")
        after = total - number if less else total + number
        begin = rng.choice(("Then", "Next", "Now", "So"))
        steps.append(f"{begin} {total}{'-' if less else '+'}{number}={after}.")
        total = after
    end = rng.choice(("The answer is {}.", "{} {}.", "That leaves {}.", "In the end: {}."))
    end = end.format(things.capitalize(), total) if end == "{} {}." else end.format(total)
    return " ".join([*story, f"How many {things} are there?"]), " ".join([*steps, end]), total


def sorting(rng: random.Random, length: int) -> Problem:
    """Some numbers are put in order, and one of them named by its place."""
    numbers = rng.sample(range(1, 100), length + 2)
    place = rng.randrange(len(numbers))
    found = sorted(numbers)[place]
    begin = rng.choice(("Sorted:", "In order they are", "From small to large:", "The order is"))
    end = rng.choice(("The {} is {}.", "So the {} is {}.", "The {} of them is {}."))
    listed = ", ".join(map(str, sorted(numbers)))
    question = f"Sort {', '.join(map(str, numbers))}. Which is the {PLACES[place]}?"
    return question, f"{begin} {listed}. {end.format(PLACES[place], found)}", found


def counting(rng: random.Random, length: int) -> Problem:
    """How often a word stands in a text of 3 to 13 words."""
    some = rng.sample(WORDS, 4)
    text = rng.sample(some * 5, 4 * length + rng.randrange(-1, 2))
    word = rng.choice(text)
    count = text.count(word)
    begin = rng.choice(("Let us count:", "One by one:", "Counting:", "Here they are:"))
    end = rng.choice(("That makes {}.", "So there are {}.", "In all: {}.", "The answer is {}."))
    listed = ", ".join(f"{word} {number}" for number in range(1, count + 1))
    question = f"How often does {word} stand in: {' '.join(text)}?"
    return question, f"{begin} {listed}. {end.format(count)}", count


KINDS: tuple[Callable[[random.Random, int], Problem], ...] = (sums, sorting, counting)


def working(kind: str, question: str, found: int) -> list[str]:
    """The texts that stand in an answer to the question, behind a space, if its working is right.

    Args:
        kind: the name of one of KINDS.
        found: the right number.
    """
    numbers = [int(text) for text in re.findall(r"\d+", question)]
    if kind == "sorting":
        return [f" {', '.join(map(str, sorted(numbers)))}."]
    if kind == "counting":
        word = question.split()[3]
        return [f" {', '.join(f'{word} {number}' for number in range(1, found + 1))}."]
    fewer = [text.split()[0] for text in FEWER]
    total, steps = numbers[0], []
    for sentence, number in zip(question.split(". ")[1:], numbers[1:], strict=False):
        less = sentence.split()[1] in fewer
        after = total - number if less else total + number
        steps.append(f" {total}{'-' if less else '+'}{number}={after}.")
        total = after
    return steps


def problems(rng: random.Random) -> Iterator[tuple[str, Problem]]:
    """The kinds and lengths by turns: the name of the kind and length, and the problem."""
    while True:
        for length in range(1, LENGTHS + 1):
            for kind in KINDS:
                yield f"{kind.__name__} {length}", kind(rng, length)


def held_out(seed: int) -> dict[str, list[dict]]:
    """The rows of SETS, no question in two of them."""
    seen: set[str] = set()
    rows: dict[str, list[dict]] = {}
    for name, count in SETS.items():
        rows[name] = []
        for kind, (question, _, number) in problems(random.Random(f"{seed}/{name}")):
            if len(rows[name]) == count:
                break
            if question not in seen:
                seen.add(question)
                row = {"question_id": f"{name}/{len(rows[name])}", "category": kind}
                rows[name].append(row | {"turns": [question], "reference": [str(number)]})
    return rows


def small_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level, a digit a token, as many tokens as there are frequent words in the problems."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made = problems(random.Random(f"{seed}/tokenizer"))
    texts = [f"{q}\nuser assistant\n{a}" for _, (q, a, _) in (next(made) for _ in range(3000))]
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = CHAT_TEMPLATE
    return fast


def batches(
    tokenizer: PreTrainedTokenizerFast, made: Iterator[tuple[str, Problem]], excluded: set[str]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """ROWS dialogues in PARTS of like length: tokens [B, T], and which of them are an answer's."""
    rows: list[tuple[list[int], int]] = []
    while len(rows) < ROWS:
        _, (question, answer, _) = next(made)
        if question not in excluded:
            turn = [{"role": "user", "content": question}]
            prompt = tokenizer.apply_chat_template(
                turn, add_generation_prompt=True, return_dict=False
            )
            ids = prompt + tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id]
            rows.append((ids, len(prompt)))
    rows.sort(key=lambda row: len(row[0]))
    size = ROWS // PARTS
    found = []
    for part in (rows[begin : begin + size] for begin in range(0, ROWS, size)):
        length = len(part[-1][0])
        token_BT = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in part])
        place_T = torch.arange(length)
        span_B2 = torch.tensor([[begin, len(ids)] for ids, begin in part])
        found.append((token_BT, (span_B2[:, :1] <= place_T) & (place_T < span_B2[:, 1:])))
    return found


def train_step(model: LlamaForCausalLM, parts: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Add the gradients of the mean loss over all tokens of answers, and return it, in nats."""
    total, count = 0.0, sum(int(answer_BT.sum()) for _, answer_BT in parts)
    for token_BT, answer_BT in parts:
        asked_BT = answer_BT[:, 1:]
        state_BTD = model.model(token_BT, use_cache=False).last_hidden_state
        logits_AV = model.lm_head(state_BTD[:, :-1][asked_BT])
        loss = cross_entropy(logits_AV, token_BT[:, 1:][asked_BT], reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total


def make(options: MadeProblemsOptions) -> None:
    torch.manual_seed(options.seed)
    folder, tokenizer = Path(options.output), small_tokenizer(options.seed)
    folder.mkdir(parents=True, exist_ok=True)
    sets = held_out(options.seed)
    for name, rows in sets.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_file(folder / f"{name}.jsonl", text.encode())
    excluded = {row["turns"][0] for rows in sets.values() for row in rows}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    state, cycle, done = folder / "training.pt", 0, 0
    stored = torch.load(state, weights_only=True) if state.exists() else None
    if stored:
        cycle, done = stored["cycle"], stored["steps"]
    for number, steps in list(enumerate(options.steps))[cycle:]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 2e-3, total_steps=steps + 1, pct_start=0.1
        )
        parts = (model, optimizer, schedule)
        if stored:
            for part, values in zip(parts, stored["parts"], strict=True):
                part.load_state_dict(values)
            stored = None
        bar = tqdm(total=steps, initial=done, desc=f"training {number + 1}/{len(options.steps)}")
        for step in range(done, steps):
            # a step's problems depend on its numbers alone: a killed run goes on with the same
            made = problems(random.Random(f"{options.seed}/train/{number}/{step}"))
            loss = train_step(model, batches(tokenizer, made, excluded))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            bar.update()
            if step % 20 == 0:
                bar.set_postfix(loss=f"{loss:.3f}")
            if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
                saved = {"cycle": number, "steps": step + 1}
                saved |= {"parts": [part.state_dict() for part in parts]}
                torch.save(saved, state.with_suffix(".new"))
                state.with_suffix(".new").replace(state)
        bar.close()
        done = 0
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"The target is in {folder}.")


if __name__ == "__main__":
    run_command(make, [MadeProblemsOptions])
