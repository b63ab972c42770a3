"""The model "eagle_fsd" of lm-evaluation-harness (lm-eval 0.4.13).

generate_until goes through the decoding loop by an arm, one answer at a time. All else is lm-eval's
own model "hf" on the same target: tokens, truncation, chat templates, and log-likelihoods, which no
arm changes. evaluate/harness.py registers the model.
"""

import logging
import zlib
from collections import Counter
from dataclasses import asdict, replace

import torch
from accelerate import Accelerator
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from eagle_fsd.config import BadInput, SamplingConfig
from eagle_fsd.decoding.loop import Generation, StopConfig
from eagle_fsd.evaluation.answering import answer_prompt
from eagle_fsd.evaluation.arms import parse_arm
from eagle_fsd.models.chat import Message, fastchat_prompt
from eagle_fsd.runs.checkout import without_checkout
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import describe_run, weights_digest
from eagle_fsd.tasks.harness_options import (
    HarnessOptions,
    check_cacheable,
    claim_cache,
    read_generation,
)
from eagle_fsd.tasks.harness_tally import Sums, count_answer, metrics_by_task, task_table

NAME = "eagle_fsd"
WARM_UP_TOKENS = 8

Request = tuple[list[int], SamplingConfig, StopConfig]  # prompt, and how to answer it

log = logging.getLogger(__name__)
# HFLM warns of a model that is handed to it, in words that are wrong of this one
HF_LOG = logging.getLogger("lm_eval.models.huggingface")
HF_LOG.addFilter(lambda record: "`pretrained`" not in record.msg)


class FuzzyLM(HFLM):
    """An arm on a target as lm-eval's model.

    Args:
        arguments: see HarnessOptions.

    Attributes:
        loaded: the target with its drafter.

    Raises:
        BadInput: see HarnessOptions and eagle_fsd.api.load; told before weights load.
    """

    def __init__(self, **arguments: object):
        self.options = HarnessOptions.read(arguments)
        self.arm = parse_arm(self.options.arm)
        on_cpu = self.options.device == "cpu"
        processes = Processes.launched(cpu=on_cpu)
        self.options.device = processes.device(self.options.device)
        self.loaded = self.options.load(drafts=self.arm.drafts and self.arm.drafter.needs_head)
        super().__init__(
            self.loaded.target.model,
            tokenizer=self.loaded.tokenizer,
            max_length=self.options.max_length or self.loaded.target.max_positions,
            softmax_dtype="float32",
        )
        # a model that is handed over is one process's for HFLM
        self._rank, self._world_size = processes.index, processes.count
        if processes.count > 1:
            self.accelerator = Accelerator(cpu=on_cpu)
        self._drafter = self.arm.build_drafter(self.loaded)
        self._sums: dict[str, Sums] = {}  # of this process, by task
        self._every_sums = [self._sums]  # of all processes, on the first

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

    # --- chat templates ----------------------------------------------------------------------

    @property
    def tokenizer_name(self) -> str:
        """By which lm-eval keeps built prompts apart."""
        names = [super().tokenizer_name, self.options.conv_template]
        return "__".join(name for name in names if name)

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
            return super().apply_chat_template(chat_history, add_generation_prompt)
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
        todo = [self.read_request(*request.args) for request in requests]
        if todo:  # warm-up through the same call
            prompt, sampling, stop = todo[0]
            budget = min(WARM_UP_TOKENS, stop.max_new_tokens)
            self.answer((prompt, sampling, replace(stop, max_new_tokens=budget)), seed=0)
        answers: list[str] = []
        given: dict[int, list[str]] = {}
        bar = tqdm(todo, desc=self.arm.text, disable=disable_tqdm or self.rank != 0, unit="answer")
        for instance, request in zip(requests, bar, strict=True):
            before = given.setdefault(id(instance), [])
            if len(before) == (instance.repeats or 1):
                answers.append(before[-1])  # a copy: lm-eval evens out the ranks with them
                continue
            context = instance.args[0]
            seed = zlib.crc32(f"{self.options.seed}/{len(before)}/{context}".encode())
            result, seconds = self.answer(request, seed)
            text = self.loaded.text(result.tokens)
            text = postprocess_generated_text(text, list(request[2].strings), None)
            sums = self._sums.setdefault(instance.task_name or "", Counter())
            sums.update(count_answer(result, seconds))
            self.cache_hook.add_partial("generate_until", instance.args, text)
            before.append(text)
            answers.append(text)
        return answers

    def answer(self, request: Request, seed: int) -> tuple[Generation, float]:
        """One answer by the arm, and its seconds."""
        return answer_prompt(self.arm, self.loaded, *request, seed, drafter=self._drafter)

    def read_request(self, context: str, gen_kwargs: dict[str, object]) -> Request:
        """What lm-eval asks for, as the loop takes it; the prompt truncated from the left to leave
        room for the budget.

        Raises:
            BadInput: it cannot be answered so.
        """
        sampling, budget, until = read_generation(gen_kwargs, self.options.max_gen_toks)
        stop = replace(self.loaded.stop(budget, until), decode=self.tokenizer.decode)
        self.arm.policy(sampling).check(self._drafter)
        room = self.max_length - budget
        if room < 1:
            raise BadInput(
                f"max_gen_toks {budget} leaves no room for a prompt in {self.max_length} tokens: "
                "lower it with --gen_kwargs"
            )
        prompt = self.tok_encode(context) or [self.prefix_token_id]
        if len(prompt) > room:
            log.warning("prompt of %d tokens truncated from the left to %d", len(prompt), room)
        return prompt[-room:], sampling, stop

    # --- log-likelihoods: HFLM's, by the target's engine -------------------------------------

    def _model_call(self, inps: torch.Tensor, **unused: object) -> torch.Tensor:
        with torch.inference_mode():
            hidden_BLD, _ = self.loaded.target.hidden_and_features(inps, use_cache=False)
            return self.loaded.target.logits(hidden_BLD)

    def _loglikelihood_tokens(
        self, requests: list[tuple[object, list[int], list[int]]], **settings: object
    ) -> list[tuple[float, bool]]:
        for _, _, continuation in requests:
            if not 1 <= len(continuation) <= self.max_length:
                raise BadInput(
                    f"a continuation of {len(continuation)} tokens cannot be rated: 1 to "
                    f"{self.max_length} (max_length) can"
                )
        return super()._loglikelihood_tokens(requests, **settings)

    # --- what is told ------------------------------------------------------------------------

    def barrier(self) -> None:
        """Where all processes meet after each kind of request; their sums are collected here."""
        super().barrier()
        self._every_sums = self.gather_object(self._sums) or []

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """lm-eval's answer cache; see claim_cache."""
        super().set_cache_hook(cache_hook)
        if cache_hook.dbdict is not None:
            head = getattr(self._drafter, "fingerprint", "")
            weights = [weights_digest(self.loaded.target.model), head]
            claim_cache(cache_hook.dbdict, self.options, weights)

    def metrics(self) -> dict[str, dict[str, float | int | None]]:
        """Metrics of the answers made so far, by task and for "all"; empty without any.

        Those of all processes after `barrier`, on the first. Answers from a cache are not in them.
        """
        return metrics_by_task(self._every_sums)

    def report(self) -> str:
        """`metrics` as a Markdown table; empty without any."""
        metrics = self.metrics()
        return f"{self.arm.text}\n\n{task_table(metrics)}" if metrics else ""

    def get_model_info(self) -> dict[str, object]:
        """What lm-eval adds to `config` of its results file."""
        target = self.loaded.target
        return {
            "model_dtype": str(target.dtype),
            NAME: {
                "options": without_checkout(asdict(self.options)),
                "engine": target.engine.name,
                "processes": self.world_size,
                "run": describe_run(self.options.device),
                "generation": self.metrics(),
            },
        }
