"""lm-evaluation-harness drives a target with its drafts: the model "eagle_fsd" (lm-eval 0.4.13).

generate_until goes through the decoding loop under an acceptance rule, one answer at a time;
log-likelihoods are the target's own, whatever the rule. Tokens, stop strings and truncation follow
lm-eval's own model "hf", so that scores can be compared. evaluate/harness.py registers the model.

Axes: L tokens of a sequence, C rows of a block, K continuations, V vocabulary, D hidden size.
"""

import json
import logging
import math
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

import torch
from accelerate.utils import gather
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.models.utils import (
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import (
    get_rolling_token_windows,
    make_disjoint_window,
    simple_parse_args_string,
)
from tqdm import tqdm

from eagle_fsd.arms import Arm
from eagle_fsd.chat import Message, _fastchat_prompt
from eagle_fsd.config import AcceptConfig, SamplingConfig
from eagle_fsd.decode import Generation, StopConfig
from eagle_fsd.loading import load_target_config
from eagle_fsd.options import DecodeOptions, ModelOptions, option
from eagle_fsd.processes import Processes
from eagle_fsd.provenance import describe_run, without_checkout
from eagle_fsd.summary import Column, markdown_table

NAME = "eagle_fsd"
NO_HEAD = "none"
BLOCK_ROWS = 256  # of logits at once: a row is as wide as the vocabulary
WARM_UP_TOKENS = 8
CACHE_MARK = "eagle_fsd"  # a key of lm-eval's answer cache; its own keys are hashes
NOT_IN_ANSWERS = frozenset({"device", "engine", "batch_size"})
GENERATION_KEYS = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")

log = logging.getLogger(__name__)


@dataclass
class HarnessOptions(ModelOptions):
    """What --model_args may hold."""

    rule: str = option("", "plain, or a name in RULES; empty: fsd, and plain with head=none")
    divergence: str = option(AcceptConfig.divergence, "see AcceptConfig")
    threshold: float = option(AcceptConfig.threshold, "T of the rule")
    logits: str = option(AcceptConfig.logits, "see AcceptConfig")
    child: str = option(AcceptConfig.child, "see AcceptConfig")
    max_length: int | None = option(None, "longest sequence; default: the target's positions")
    max_gen_toks: int = option(256, "budget of an answer whose task names none")
    seed: int = option(0, "of all sampling")
    batch_size: str = option("1", "1 or auto, which is 1")

    def __post_init__(self):
        super().__post_init__()
        without_head = self.head.lower() == NO_HEAD
        self.rule = self.rule or ("plain" if without_head else AcceptConfig.rule)
        if without_head and self.rule != "plain":
            raise ValueError(f"rule={self.rule} needs a head: name one, or give rule=plain")
        if self.batch_size != "1" and not self.batch_size.startswith("auto"):
            raise ValueError(
                f"batch_size {self.batch_size}: eagle_fsd answers one at a time; give 1 or auto"
            )
        StopConfig(self.max_gen_toks)  # its own check
        self.tree()
        self.arm()
        positions = getattr(load_target_config(self.target), "max_position_embeddings", None)
        longest = positions or math.inf
        if self.max_length is not None and not 2 <= self.max_length <= longest:
            raise ValueError(f"max_length must be in 2..{longest} here, got {self.max_length}")

    @classmethod
    def read(cls, arguments: dict[str, object]) -> "HarnessOptions":
        """From what lm-eval made of --model_args.

        Raises:
            ValueError: an unknown key, or a value of another type or out of range.
        """
        types = {field.name: field.type for field in fields(cls)}
        unknown = [name for name in arguments if name not in types]
        if unknown:
            raise ValueError(f"unknown model_args {', '.join(unknown)}; known: {', '.join(types)}")
        return cls(**{name: _typed(name, arguments[name], types[name]) for name in arguments})

    def arm(self) -> Arm:
        """How to answer. What greedy tasks cannot have is refused when their requests come."""
        if self.rule == "plain":
            return Arm("plain")
        decoding = DecodeOptions(self.divergence, self.logits, self.child, temperature=1.0)
        return Arm.with_rule(decoding.accept(self.rule, self.threshold))


def _typed(name: str, value: object, kind: type) -> object:
    """lm-eval reads numbers and None wherever it can; texts are what they were."""
    if kind is str:
        return str(value)
    if isinstance(value, bool) or not isinstance(value, int | kind):
        wanted = getattr(kind, "__name__", kind)
        raise ValueError(f"{name}={value!r} in model_args must be {wanted}")
    return value


@dataclass(frozen=True)
class Request:
    """One prompt and how to answer it.

    Attributes:
        prompt: token ids, truncated from the left to leave room for the budget.
        sampling, stop: from the task's generation_kwargs.
    """

    prompt: list[int]
    sampling: SamplingConfig
    stop: StopConfig


def read_generation(
    gen_kwargs: dict[str, object], max_gen_toks: int
) -> tuple[SamplingConfig, int, tuple[str, ...]]:
    """What a task's generation_kwargs ask for: the sampling, the budget, the stop strings.

    As in lm-eval: greedy unless do_sample or a temperature is given, and greedy with
    do_sample=False. top_k and top_p are off unless given.

    Raises:
        ValueError: a setting that is out of range or that decoding here does not have.
    """
    settings = dict(normalize_gen_kwargs(gen_kwargs, max_gen_toks))
    if settings.get("num_beams", 1) == 1:
        settings.pop("num_beams", None)
    unknown = [name for name in settings if name not in GENERATION_KEYS]
    if unknown:
        raise ValueError(
            f"generation_kwargs {', '.join(f'{name}={settings[name]}' for name in unknown)} cannot "
            f"be had with eagle_fsd; known: {', '.join(GENERATION_KEYS)}"
        )
    temperature = float(settings.get("temperature", 0.0)) if settings["do_sample"] else 0.0
    top_k, top_p = int(settings.get("top_k", 0)), float(settings.get("top_p", 1.0))
    until = tuple(string for string in settings["until"] if string)
    return SamplingConfig(temperature, top_k, top_p), settings["max_gen_toks"], until


@dataclass
class Tally:
    """Sums over answers and their rounds, as summary.py counts them."""

    answers: int = 0
    at_limit: int = 0
    tokens: int = 0
    seconds: float = 0.0
    rounds: int = 0
    round_tokens: int = 0
    fuzzy: int = 0
    regret: float = 0.0
    tv: float = 0.0

    def add(self, result: Generation, seconds: float) -> None:
        self.answers += 1
        self.at_limit += result.finish == "length"
        self.tokens += len(result.tokens)
        self.seconds += seconds
        self.rounds += len(result.rounds)
        for one in result.rounds:
            self.round_tokens += len(one.tokens)
            self.fuzzy += sum(one.fuzzy)
            self.regret += sum(one.regret)
            self.tv += sum(one.tv)

    @classmethod
    def total(cls, tallies: Iterable["Tally"]) -> "Tally":
        rows = [asdict(tally) for tally in tallies]
        return cls(**{field.name: sum(row[field.name] for row in rows) for field in fields(cls)})

    def figures(self) -> dict[str, float | int | None]:
        """JSON-able; names as in summary.py, None where there is nothing to divide by."""
        return {
            "answers": self.answers,
            "answers_at_limit": self.at_limit,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "rounds": self.rounds,
            "tokens_per_second": _ratio(self.tokens, self.seconds),
            "tokens_per_answer": _ratio(self.tokens, self.answers),
            "tokens_per_round": _ratio(self.round_tokens, self.rounds),
            "fuzzy_share": _ratio(self.fuzzy, self.round_tokens),
            "regret_per_token": _ratio(self.regret, self.round_tokens),
            "tv_per_token": _ratio(self.tv, self.round_tokens),
        }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole and math.isfinite(part) else None


COLUMNS: tuple[Column, ...] = (
    ("task", "task", "s"),
    ("answers", "answers", "d"),
    ("at the limit", "answers_at_limit", "d"),
    ("tokens", "tokens", "d"),
    ("tokens/s", "tokens_per_second", ".1f"),
    ("rounds", "rounds", "d"),
    ("tokens/round", "tokens_per_round", ".2f"),
    ("fuzzy share", "fuzzy_share", ".4f"),
    ("regret/token", "regret_per_token", ".4f"),
    ("TV/token", "tv_per_token", ".4f"),
)


class FuzzyLM(TemplateLM):
    """A target and its drafts as lm-eval's model.

    Args:
        arguments: see HarnessOptions.

    Raises:
        ValueError: see HarnessOptions and eagle_fsd.api.load; told before weights load.
    """

    def __init__(self, **arguments: object):
        super().__init__()
        self.options = HarnessOptions.read(arguments)
        self.arm = self.options.arm()
        self._processes = Processes.launched(cpu=self.options.device == "cpu")
        self._rank, self._world_size = self._processes.index, self._processes.count
        self.options.device = self._processes.device(self.options.device)
        self.model = self.options.load(drafts=self.arm.accept is not None)
        self.tokenizer = self.model.tokenizer
        self._drafter = self.arm.build_drafter(self.model)
        self._device = self.model.target.device
        self._tallies: dict[str, Tally] = {}  # of this rank, by task
        self._all_tallies = [self._tallies]  # of all ranks, on the first

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, object], additional_config: dict[str, object] | None = None
    ) -> "FuzzyLM":
        """lm-eval's way in.

        Args:
            arg_dict: --model_args, which go before the others.
            additional_config: --device, --batch_size and --max_batch_size. A device that is
                lm-eval's default stands for cuda if there is one.
        """
        given = {k: v for k, v in (additional_config or {}).items() if v is not None}
        given.pop("max_batch_size", None)
        if given.get("device") == EvaluatorConfig().device:
            del given["device"]
        given |= arg_dict
        given.pop("trust_remote_code", None)  # for data sets: targets never run code of theirs
        return cls(**given)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, object] | None = None
    ) -> "FuzzyLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # --- text and tokens ---------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int | None:
        """What an empty context is: the first token of a text, else the end token."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        return self.options.max_length or self.model.target.max_positions

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Token ids; unless told, a text that begins with the first token gets no second one."""
        if add_special_tokens is None:
            add_special_tokens = not has_bos_prefix(string, self.tokenizer.bos_token)
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        name = self.tokenizer.name_or_path.replace("/", "__")
        return f"{name}__{self.options.conv_template}" if self.options.conv_template else name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template, or the name of FastChat's.

        Raises:
            ValueError: there is none.
        """
        if self.options.conv_template:
            return self.options.conv_template
        if self.tokenizer.chat_template is None:
            raise ValueError(
                "--apply_chat_template: this target's tokenizer has no chat template; name one of "
                "FastChat's with conv_template in --model_args"
            )
        return super().chat_template(chat_template)

    def apply_chat_template(
        self, chat_history: list[Message], add_generation_prompt: bool = True
    ) -> str:
        """The conversation as text, up to where the assistant goes on.

        Args:
            add_generation_prompt: False continues the last message, the assistant's.
        """
        if not self.options.conv_template:
            return self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        if not add_generation_prompt:
            raise ValueError(
                "a task that begins the answer (gen_prefix) needs the tokenizer's own chat "
                f"template: leave conv_template={self.options.conv_template} out"
            )
        return _fastchat_prompt(chat_history, self.options.conv_template)

    # --- answers -----------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer each request; all of them are checked before the first is answered.

        The seed depends on the prompt, on the option `seed` and on the number of the repeat only,
        not on the order or the number of processes.
        """
        todo = [self._read_request(*request.args) for request in requests]
        if todo:  # warm-up through the same call
            budget = min(WARM_UP_TOKENS, todo[0].stop.max_new_tokens)
            stop = replace(todo[0].stop, max_new_tokens=budget)
            self._answer(replace(todo[0], stop=stop), seed=0)
        answers: list[str] = []
        given: dict[int, list[str]] = {}
        bar = tqdm(todo, desc=self.arm.name, disable=disable_tqdm or self.rank != 0, unit="answer")
        for instance, request in zip(requests, bar, strict=True):
            before = given.setdefault(id(instance), [])
            if len(before) == (instance.repeats or 1):
                answers.append(before[-1])  # a copy: lm-eval evens out the ranks with them
                continue
            context = instance.args[0]
            seed = zlib.crc32(f"{self.options.seed}/{len(before)}/{context}".encode())
            result, seconds = self._answer(request, seed)
            text = self.model.text(result.tokens)
            text = postprocess_generated_text(text, list(request.stop.strings), None)
            self._tallies.setdefault(instance.task_name or "", Tally()).add(result, seconds)
            self.cache_hook.add_partial("generate_until", instance.args, text)
            before.append(text)
            answers.append(text)
        return answers

    def _answer(self, request: Request, seed: int) -> tuple[Generation, float]:
        return self.arm.answer(
            self.model,
            request.prompt,
            request.sampling,
            request.stop,
            seed,
            drafter=self._drafter,
        )

    def _read_request(self, context: str, gen_kwargs: dict[str, object]) -> Request:
        """Raises ValueError where it cannot be answered so."""
        sampling, budget, until = read_generation(gen_kwargs, self.options.max_gen_toks)
        stop = replace(self.model.stop(budget, until), decode=self.tokenizer.decode)
        self.arm.decode_config(sampling, stop, seed=0)  # its own check
        room = self.max_length - budget
        if room < 1:
            raise ValueError(
                f"max_gen_toks {budget} leaves no room for a prompt in {self.max_length} tokens: "
                "lower it with --gen_kwargs"
            )
        prompt = self.tok_encode(context) or [self.prefix_token_id]
        if len(prompt) > room:
            log.warning("prompt of %d tokens truncated from the left to %d", len(prompt), room)
        return Request(prompt[-room:], sampling, stop)

    # --- log-likelihoods ---------------------------------------------------------------------

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether each of its tokens is the argmax.

        Continuations that differ in their last token only share a forward, so that choices of one
        token cost one together.

        Raises:
            ValueError: a continuation is empty or longer than max_length.
        """
        sharing: dict[tuple[int, ...], list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            if not 1 <= len(continuation) <= self.max_length:
                raise ValueError(
                    f"a continuation of {len(continuation)} tokens cannot be rated: 1 to "
                    f"{self.max_length} (max_length) can"
                )
            sharing.setdefault((*context, *continuation[:-1]), []).append(number)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        hidden = disable_tqdm or self.rank != 0
        for tokens, numbers in tqdm(sharing.items(), desc="log-likelihoods", disable=hidden):
            if len(tokens) > self.max_length:
                log.warning("%d tokens truncated from the left to %d", len(tokens), self.max_length)
            rated = self._rate(tokens[-self.max_length :], [requests[n][2] for n in numbers])
            for number, answer in zip(numbers, rated, strict=True):
                answers[number] = answer
                if requests[number][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[number][0], answer)
        return answers

    @torch.inference_mode()
    def _rate(
        self, tokens: tuple[int, ...], continuations: list[list[int]]
    ) -> list[tuple[float, bool]]:
        """Continuations that end right behind `tokens` and, but for their last, in them.

        Example: tokens 5 6 7 with continuations [8] and [7, 9] are rated by the logits after 7 and
        after 6 7.
        """
        target = self.model.target
        ids_1L = torch.tensor([tokens], device=target.device)
        hidden_1LD, _ = target.hidden_and_features(ids_1L, use_cache=False)
        longest = max(map(len, continuations))
        rows = [[-1] * (longest - len(tokens)) + tokens for tokens in continuations]
        token_KL = torch.tensor(rows, device=target.device)  # -1: before the continuation
        logp_K = torch.zeros(len(rows), device=target.device)
        greedy_K = torch.ones(len(rows), dtype=torch.bool, device=target.device)
        blocks = zip(
            hidden_1LD[0, -longest:].split(BLOCK_ROWS), token_KL.split(BLOCK_ROWS, 1), strict=True
        )
        for hidden_CD, token_KC in blocks:
            logp_CV = torch.log_softmax(target.logits(hidden_CD), dim=-1, dtype=torch.float32)
            row_C = torch.arange(len(logp_CV), device=target.device)
            logp_KC = logp_CV[row_C, token_KC.clamp_min(0)]
            own_KC = token_KC >= 0
            logp_K += torch.where(own_KC, logp_KC, 0.0).sum(1)
            greedy_K &= ((logp_CV.argmax(-1) == token_KC) | ~own_KC).all(1)
        return list(zip(logp_K.tolist(), greedy_K.tolist(), strict=True))

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of each whole text, in windows of max_length, nats."""
        totals = []
        for request in tqdm(requests, desc="texts", disable=disable_tqdm or self.rank != 0):
            (text,) = request.args
            windows = get_rolling_token_windows(
                self.tok_encode(text), self.prefix_token_id, self.max_length, 1
            )
            rated = self._loglikelihood_tokens(
                [(None, *make_disjoint_window(window)) for window in windows], disable_tqdm=True
            )
            totals.append(sum(logp for logp, _ in rated))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    # --- several processes -------------------------------------------------------------------

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return gather(tensor) if self.world_size > 1 else tensor

    def gather_object(self, obj: object, dst: int = 0) -> list | None:
        if self.world_size == 1:
            return [obj]
        gathered = [None] * self.world_size if self.rank == dst else None
        torch.distributed.gather_object(obj, gathered, dst=dst)
        return gathered

    def barrier(self) -> None:
        """Where all ranks meet after each kind of request; their tallies are collected here."""
        self._processes.wait()
        self._all_tallies = self.gather_object(self._tallies) or []

    # --- what is told ------------------------------------------------------------------------

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """lm-eval's answer cache (--use_cache), which knows a request but not who answered it.

        Raises:
            ValueError: the cache holds answers made with other options.
        """
        super().set_cache_hook(cache_hook)
        cache = cache_hook.dbdict
        if cache is None:
            return
        mine = {k: v for k, v in asdict(self.options).items() if k not in NOT_IN_ANSWERS}
        made_with = cache.get(CACHE_MARK) if len(cache) else json.dumps(mine)
        if made_with != json.dumps(mine):
            raise ValueError(
                f"--use_cache holds answers made with {made_with or 'another model'}; asked for "
                f"is {json.dumps(mine)}: name another cache"
            )
        cache[CACHE_MARK] = made_with

    def figures(self) -> dict[str, dict[str, float | int | None]]:
        """Figures of the answers made so far, by task and for "all"; empty without any.

        Those of all ranks after `barrier`, on the first rank. Answers from a cache are not in them.
        """
        by_task: dict[str, list[Tally]] = {}
        for tallies in self._all_tallies:
            for task, tally in tallies.items():
                by_task.setdefault(task, []).append(tally)
        if not by_task:
            return {}
        totals = {task: Tally.total(parts) for task, parts in by_task.items()}
        return {
            "tasks": {task: total.figures() for task, total in totals.items()},
            "all": Tally.total(totals.values()).figures(),
        }

    def report(self) -> str:
        """`figures` as a Markdown table; empty without any."""
        figures = self.figures()
        if not figures:
            return ""
        rows = [{"task": task, **row} for task, row in figures["tasks"].items()]
        rows += [{"task": "all", **figures["all"]}] if len(rows) > 1 else []
        return f"{self.arm.name}\n\n{markdown_table(rows, COLUMNS)}"

    def get_model_info(self) -> dict[str, object]:
        """What lm-eval adds to `config` of its results file."""
        target = self.model.target
        return {
            "model_dtype": str(target.dtype),
            NAME: {
                "arm": self.arm.name,
                "options": without_checkout(asdict(self.options)),
                "engine": target.engine,
                "processes": self.world_size,
                "run": describe_run(self.options.device),
                "generation": self.figures(),
            },
        }
