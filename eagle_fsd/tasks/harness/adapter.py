"""The model "eagle_fsd": what lm-evaluation-harness calls, answered by the decoding loop."""

import logging
import zlib
from dataclasses import asdict, replace

import torch
from accelerate.utils import gather
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.models.utils import has_bos_prefix, postprocess_generated_text
from lm_eval.utils import (
    get_rolling_token_windows,
    make_disjoint_window,
    simple_parse_args_string,
)
from tqdm import tqdm

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.loop import Generation
from eagle_fsd.models.chat import Message, fastchat_prompt
from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import describe_run
from eagle_fsd.tasks.harness.answer_cache import check_cacheable, claim_cache
from eagle_fsd.tasks.harness.likelihoods import rate
from eagle_fsd.tasks.harness.lm_requests import Request, read_generation
from eagle_fsd.tasks.harness.model_args import HarnessOptions
from eagle_fsd.tasks.harness.tally import Tally, figures_by_task, task_table

NAME = "eagle_fsd"
WARM_UP_TOKENS = 8

log = logging.getLogger(__name__)


class FuzzyLM(TemplateLM):
    """A target and its drafts as lm-eval's model.

    Args:
        arguments: see HarnessOptions.

    Raises:
        BadInput: see HarnessOptions and eagle_fsd.api.load; told before weights load.
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
            BadInput: there is none.
        """
        if self.options.conv_template:
            return self.options.conv_template
        if self.tokenizer.chat_template is None:
            raise BadInput(
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
            raise BadInput(
                "a task that begins the answer (gen_prefix) needs the tokenizer's own chat "
                f"template: leave conv_template={self.options.conv_template} out"
            )
        return fastchat_prompt(chat_history, self.options.conv_template)

    # --- answers -----------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer each request; all of them are checked before the first is answered.

        The seed depends on the prompt, on the option `seed` and on the number of the repeat only,
        not on the order or the number of processes.
        """
        cached = self.cache_hook.dbdict is not None
        for request in requests if cached else []:
            check_cacheable(request.args[1], request.repeats or 1)
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
        """Raises BadInput where it cannot be answered so."""
        sampling, budget, until = read_generation(gen_kwargs, self.options.max_gen_toks)
        stop = replace(self.model.stop(budget, until), decode=self.tokenizer.decode)
        self.arm.decode_config(sampling, stop, seed=0)  # its own check
        room = self.max_length - budget
        if room < 1:
            raise BadInput(
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
            BadInput: a continuation is empty or longer than max_length.
        """
        sharing: dict[tuple[int, ...], list[int]] = {}
        for number, (_, context, continuation) in enumerate(requests):
            if not 1 <= len(continuation) <= self.max_length:
                raise BadInput(
                    f"a continuation of {len(continuation)} tokens cannot be rated: 1 to "
                    f"{self.max_length} (max_length) can"
                )
            sharing.setdefault((*context, *continuation[:-1]), []).append(number)
        answers: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        hidden = disable_tqdm or self.rank != 0
        for tokens, numbers in tqdm(sharing.items(), desc="log-likelihoods", disable=hidden):
            if len(tokens) > self.max_length:
                log.warning("%d tokens truncated from the left to %d", len(tokens), self.max_length)
            continuations = [requests[number][2] for number in numbers]
            rated = rate(self.model.target, tokens[-self.max_length :], continuations)
            for number, answer in zip(numbers, rated, strict=True):
                answers[number] = answer
                if requests[number][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[number][0], answer)
        return answers

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
        """lm-eval's answer cache; see claim_cache."""
        super().set_cache_hook(cache_hook)
        if cache_hook.dbdict is not None:
            claim_cache(cache_hook.dbdict, self.options)

    def figures(self) -> dict[str, dict[str, float | int | None]]:
        """Figures of the answers made so far, by task and for "all"; empty without any.

        Those of all ranks after `barrier`, on the first rank. Answers from a cache are not in them.
        """
        return figures_by_task(self._all_tallies)

    def report(self) -> str:
        """`figures` as a Markdown table; empty without any."""
        figures = self.figures()
        return f"{self.arm.name}\n\n{task_table(figures)}" if figures else ""

    def get_model_info(self) -> dict[str, object]:
        """What lm-eval adds to `config` of its results file."""
        target = self.model.target
        return {
            "model_dtype": str(target.dtype),
            NAME: {
                "arm": self.arm.name,
                "options": without_checkout(asdict(self.options)),
                "engine": target.engine.name,
                "processes": self.world_size,
                "run": describe_run(self.options.device),
                "generation": self.figures(),
            },
        }
