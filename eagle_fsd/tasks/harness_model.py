"""The model "eagle_fsd" of lm-evaluation-harness (lm-eval 0.4.13).

generate_until goes through the decoding loop by an arm, one answer at a time. All else is lm-eval's
own model "hf" on the same target: tokens, chat templates, and log-likelihoods, which no arm
changes.
"""

import json
import logging
import zlib
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, fields, replace

import torch
from accelerate import Accelerator
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm
from transformers import HfArgumentParser

from eagle_fsd.arms import parse_arm
from eagle_fsd.cli import ModelOptions, PluginOptions, option
from eagle_fsd.config import DEFAULT_ARM, BadInput, SamplingConfig
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.evaluation.answering import answer_prompt, turn_record
from eagle_fsd.evaluation.metrics import METRICS, summarize
from eagle_fsd.evaluation.tables import markdown_table
from eagle_fsd.runs.processes import Processes
from eagle_fsd.runs.provenance import describe_run, source_digest, without_checkout

NAME = "eagle_fsd"  # as --model, in the results file, and the key of lm-eval's answer cache
WARM_UP_TOKENS = 8  # of an answer that is thrown away
SHOWN = ("tokens_per_second", "tokens_per_answer", "tokens_per_round", "fuzzy_share")
SHOWN += ("regret_per_token", "tv_per_token")

log = logging.getLogger(__name__)
# HFLM warns of a model that is handed to it, in words that are wrong of this one
HF_LOG = logging.getLogger("lm_eval.models.huggingface")
HF_LOG.addFilter(lambda record: "`pretrained`" not in record.msg)


@dataclass
class HarnessOptions(ModelOptions):
    """The fields of --model_args, which lm-eval splits at commas; so what is no field here is a
    further field of the arm: arm=fsd:0.3,child=target,target=smollm2."""

    arm: str = option(
        DEFAULT_ARM,
        "How drafts are accepted and made: rule[:value][,field=value][@drafter[:tree]], or plain.",
    )
    seed: int = option(0, "The seed of all sampling.")

    def __post_init__(self):
        super().__post_init__()
        arm = parse_arm(self.arm)
        self.arm = arm.text
        arm.check_answers()
        refusals = []
        for sampling in (SamplingConfig(), SamplingConfig(1.0)):  # a request has its own
            try:
                arm.check(sampling)
            except BadInput as refusal:
                refusals.append(refusal)
        if len(refusals) == 2:
            raise refusals[0]
        if self.conv_template:
            raise BadInput(
                "lm-eval makes the prompts: give the target's tokenizer a chat_template instead of "
                f"conv_template={self.conv_template}"
            )

    @classmethod
    def read(cls, arguments: dict[str, object]) -> "HarnessOptions":
        """From what lm-eval made of its command line."""
        batch_size = arguments.pop("batch_size", None) or 1
        if str(batch_size).split(":")[0] not in ("1", "auto"):
            raise BadInput(f"batch_size {batch_size}: eagle_fsd answers one at a time; give 1")
        arguments.pop("max_batch_size", None)
        arguments.pop("trust_remote_code", None)  # for data sets: targets never run code of theirs
        if arguments.get("device") == EvaluatorConfig().device:  # the default is no wish
            del arguments["device"]
        PluginOptions(str(arguments.get("plugin") or "")).load_plugin()  # before arms are read
        names = [field.name for field in fields(cls)]
        further = [f"{name}={arguments.pop(name)}" for name in [*arguments] if name not in names]
        arguments["arm"] = ",".join([str(arguments.get("arm", DEFAULT_ARM)), *further])
        try:
            parse_arm(arguments["arm"])
        except BadInput as error:
            raise BadInput(f"{error}; a field of the arm is none of {', '.join(names)}") from error
        texts = [f"--{name}={value}" for name, value in arguments.items() if value is not None]
        return HfArgumentParser(cls).parse_args_into_dataclasses(texts)[0]


class FuzzyLM(HFLM):
    """An arm on a target as lm-eval's model; its arguments are HarnessOptions."""

    def __init__(self, **arguments: object):
        self.options = HarnessOptions.read(arguments)
        self.arm = parse_arm(self.options.arm)
        on_cpu = self.options.device == "cpu"
        processes = Processes.launched(cpu=on_cpu)
        self.options.device = processes.device(self.options.device)
        self.loaded = self.options.load([self.arm])
        super().__init__(
            self.loaded.target.model,
            tokenizer=self.loaded.tokenizer,
            max_length=self.loaded.max_positions,
            softmax_dtype="float32",
        )
        # a model that is handed over is one process's for HFLM
        self._rank, self._world_size = processes.index, processes.count
        if processes.count > 1:
            self.accelerator = Accelerator(cpu=on_cpu)
        self._drafter = self.arm.build_drafter(self.loaded)
        self._records: list[dict] = []  # of this process
        self._every_record = self._records  # on the first process of all, after `barrier`

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """All requests are checked before the first is answered. A seed is of the prompt, the
        option `seed` and the number of the repeat, whatever the order and the processes."""
        todo = [self.read_request(request) for request in requests]
        if todo:  # warm-up through the same call
            prompt, sampling, stop = todo[0]
            short = replace(stop, max_new_tokens=min(WARM_UP_TOKENS, stop.max_new_tokens))
            answer_prompt(self.arm, self.loaded, prompt, sampling, short, 0, drafter=self._drafter)
        answers: list[str] = []
        asked: Counter[int] = Counter()
        bar = tqdm(todo, desc=self.arm.text, disable=disable_tqdm or self.rank != 0, unit="answer")
        for instance, request in zip(requests, bar, strict=True):
            repeat = asked[id(instance)]
            asked[id(instance)] += 1
            if repeat >= (instance.repeats or 1):
                answers.append(answers[-1])  # a copy: lm-eval evens out the ranks with them
                continue
            seed = zlib.crc32(f"{self.options.seed}/{repeat}/{instance.args[0]}".encode())
            answered = answer_prompt(self.arm, self.loaded, *request, seed, drafter=self._drafter)
            turn = turn_record(self.loaded, request[0], *answered)
            number = f"{self.rank}/{len(self._records)}"
            place = {"arm": self.arm.text, "task": instance.task_name, "question_id": number}
            self._records.append(place | {"turns": [turn]})
            text = postprocess_generated_text(turn["text"], list(request[2].strings), None)
            self.cache_hook.add_partial("generate_until", instance.args, text)
            answers.append(text)
        return answers

    def read_request(self, request: Instance) -> tuple[list[int], SamplingConfig, StopConfig]:
        """What lm-eval asks for, as the loop takes it; the prompt truncated from the left to leave
        room for the budget. As in lm-eval: greedy unless do_sample or a temperature is given, and
        greedy with do_sample=False."""
        context, gen_kwargs = request.args
        try:
            settings = dict(normalize_gen_kwargs(gen_kwargs, self.max_gen_toks))
            budget, until = settings.pop("max_gen_toks"), filter(None, settings.pop("until"))
            temperature = float(settings.pop("temperature", 0.0))
            sampling = SamplingConfig(
                temperature if settings.pop("do_sample") else 0.0,
                int(settings.pop("top_k", 0)),
                float(settings.pop("top_p", 1.0)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(f"generation_kwargs {gen_kwargs} cannot be read: {error}") from error
        if settings.get("num_beams") == 1:
            del settings["num_beams"]
        # CachingLM knows sampling by do_sample alone (lm-eval 0.4.13)
        if self.cache_hook.dbdict is not None and "do_sample" not in gen_kwargs and temperature > 0:
            settings["temperature"] = "with --use_cache only beside do_sample=true"
        room = self.max_length - budget
        if room < 1:
            settings["max_gen_toks"] = f"below the target's {self.max_length} positions"
        if settings:
            unknown = ", ".join(f"{name} ({value})" for name, value in settings.items())
            raise BadInput(
                f"generation_kwargs: eagle_fsd has no {unknown}; mend it by --gen_kwargs"
            )
        self.arm.policy(sampling).check(self._drafter)
        stop = self.loaded.stop(budget, tuple(until))
        prompt = self.tok_encode(context) or [self.prefix_token_id]
        if len(prompt) > room:
            log.warning("prompt of %d tokens truncated from the left to %d", len(prompt), room)
        return prompt[-room:], sampling, stop

    def _model_call(self, inps: torch.Tensor, **unused: object) -> torch.Tensor:
        """HFLM's log-likelihoods by the target's engine."""
        with torch.inference_mode():
            hidden_BLD, _ = self.loaded.target.hidden_and_features(inps, use_cache=False)
            return self.loaded.target.logits(hidden_BLD)

    def barrier(self) -> None:
        """Where all processes meet after each kind of request."""
        super().barrier()
        self._every_record = sum(self.gather_object(self._records) or [], [])

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """lm-eval's answer cache knows a request but not who answered it: so it is marked with the
        options, models and code, and one of others is refused."""
        super().set_cache_hook(cache_hook)
        cache = cache_hook.dbdict
        if cache is None:
            return
        made = self.options.digests() | {"library": source_digest()}
        mark = json.dumps(asdict(self.options) | {"device": None} | made)
        made_with = cache.get(NAME) if len(cache) else mark
        if made_with != mark:
            raise BadInput(
                f"--use_cache holds answers made with {made_with or 'another model'}; asked for "
                f"is {mark}: name another cache"
            )
        cache[NAME] = mark

    def metrics(self) -> dict[str, dict]:
        """A row of metrics a task, of the answers made so far; those from a cache are not in it."""
        tasks: defaultdict[str, list[dict]] = defaultdict(list)
        for record in self._every_record:
            tasks[record["task"]].append(record)
        return {task: summarize({self.arm.text: rows})[0] for task, rows in tasks.items()}

    def get_model_info(self) -> dict[str, object]:
        """What lm-eval adds to `config` of its results file; since the first process is asked for
        it at the end, the metrics are printed here."""
        metrics = self.metrics()
        columns = [("task", "task", "s"), ("answers", "answers", "d")]
        columns += [(METRICS[name].label, name, METRICS[name].form) for name in SHOWN]
        if metrics:
            rows = [{"task": task} | row for task, row in metrics.items()]
            print(f"\n{self.arm.text}\n\n{markdown_table(rows, columns)}\n")
        options = without_checkout(asdict(self.options))
        run = describe_run(self.options.device) | {"processes": self.world_size}
        run["engine"] = self.loaded.target.engine.name
        return {NAME: {"options": options, "run": run, "generation": metrics}}
