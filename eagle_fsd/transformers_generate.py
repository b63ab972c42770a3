"""Our loop inside transformers' `generate`, which takes a callable as `custom_generate`.

`generate` prepares the request (defaults, lengths, logits processors, stopping criteria) and calls
ours in the place of its own loop. What it honours, and what not: docs/evaluate.md.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary, proxy

import torch
from torch import nn
from transformers import (
    AutoTokenizer,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import DEFAULT_ARM, BadInput, SamplingConfig, TreeConfig, as_tree
from eagle_fsd.decoding.answer import Generation, Round
from eagle_fsd.decoding.loop import DecodeConfig, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target, generation_defaults
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.engine.trial import check_target
from eagle_fsd.families import CACHE_NAMES, check_supported, text_body, text_config
from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.models.assets import EMBEDDED_TARGET
from eagle_fsd.models.chat import tell_added
from eagle_fsd.models.load import default_head, load_head, training_dtype
from eagle_fsd.models.loaded import Model
from eagle_fsd.models.weights import UNLOADABLE
from eagle_fsd.seen import Seen

HONOURED = ("do_sample", "temperature", "top_k", "top_p")  # of a generation config
# what `generate` itself hands on to a forward over token ids
FORWARD = ("attention_mask", "logits_to_keep", "position_ids", "use_cache", *CACHE_NAMES)


class Built(NamedTuple):
    """What is made for a model once."""

    loaded: Model
    drafter: Drafter  # of the arm
    seen: Seen  # what of the model, and of a head that was given loaded, it reads or has copied


class DecodingMethod:
    """What `generate` of transformers calls in the place of its own loop. Keep it: what it makes
    for a model (the head on its device, the target's reader) is made at the first call, and again
    when the model's embeddings or lm_head, or a loaded head, have changed. BadInput names what of
    the model or of the request cannot be done.

    Args:
        head: folder or hub id of a draft head, or a loaded one, which is copied; "mtp" is the MTP
            layer of the model's own checkpoint; "" is the shipped one, which fits the embedded
            target alone; None for arms that draft without.
        arm, tree: as in eagle_fsd.stream and eagle_fsd.load.
        generate_ends: as in eagle_fsd.load; a call that gives eos_token_id ends at these alone.

    Attributes:
        last: what the last call did, or has done so far: tokens, rounds, tokens_per_round,
            fuzzy_share (see Generation); None before the first.

    Example:
        >>> import eagle_fsd
        >>> from transformers import AutoModelForCausalLM, AutoTokenizer
        >>> name = eagle_fsd.embedded_target()  # or a folder or hub id of yours, and your head
        >>> model = AutoModelForCausalLM.from_pretrained(name, dtype="float32")
        >>> tokenizer = AutoTokenizer.from_pretrained(name)
        >>> inputs = tokenizer("The sky is blue because", return_tensors="pt")
        >>> fsd = eagle_fsd.custom_generate(arm="fsd:0.3")
        >>> ids = model.generate(**inputs, max_new_tokens=64, custom_generate=fsd)
        >>> print(fsd.last.tokens_per_round, fsd.last.fuzzy_share)
    """

    def __init__(
        self,
        head: str | Path | DraftHead | None = "",
        *,
        arm: str = DEFAULT_ARM,
        tree: TreeConfig | str | None = None,
        generate_ends: bool = False,
    ):
        self.last: Generation | None = None
        self._arm, self._tree, self._generate_ends = parse_arm(arm), as_tree(tree), generate_ends
        self._head = head if self._arm.drafter.needs_head else None
        self._built: WeakKeyDictionary[PreTrainedModel, Built] = WeakKeyDictionary()
        self._arm.check_answers()
        if self._arm.drafter.needs_draft_model or (self._arm.drafter.needs_head and head is None):
            raise BadInput(
                f"arm {arm!r} needs a head, or a draft model, which eagle_fsd.load alone takes: "
                "name a head, or take plain or exact@ngram"
            )

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        *,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        stream_to: BaseStreamer | None = None,
        **rest: object,
    ) -> torch.Tensor:
        """The prompt and its answer, [1, T]. `stream_to` is a streamer: of its own arguments, as
        `streamer` is one, `generate` hands none on (transformers 5.23)."""
        # 1. What cannot be honoured is refused by name, and what is made once is made.
        sampling = _read_request(model, input_ids, generation_config, logits_processor, rest)
        built = self._built.get(model)
        if built is None or built.seen.has_changed():
            with torch.random.fork_rng(devices=()):  # a head begins as random weights
                built = self._built[model] = self._build(model)
        self._arm.check(sampling, built.drafter)
        # 2. Where the answer ends, and its seed.
        prompt = input_ids[0].tolist()
        budget = max(1, stopping_criteria.max_length - len(prompt))
        ends = [c.eos_token_id for c in stopping_criteria if isinstance(c, EosTokenCriteria)]
        end_ids = tuple(token for end in ends for token in end.tolist())
        own = model.generation_config.eos_token_id
        own = {*own} if isinstance(own, list | tuple) else {own} - {None}
        if {*end_ids} == own and built.loaded.tokenizer is not None:  # none were given in this call
            end_ids += built.loaded.ends.ids
        seed = torch.randint(2**63 - 1, ()).item()
        config = DecodeConfig(self._arm.policy(sampling), StopConfig(budget, end_ids), seed)
        # 3. The loop; the criteria are asked after each of its tokens in turn.
        if stream_to is not None:
            stream_to.put(input_ids.cpu())
        self.last = answer = Generation()
        sequence = torch.cat([input_ids, input_ids.new_empty(1, budget)], dim=1)
        decoding = decode_rounds(built.loaded.target, built.drafter, prompt, config)
        with closing(decoding) as rounds:
            for length, token in enumerate(_emitted(answer, rounds), start=len(prompt) + 1):
                sequence[0, length - 1] = token
                stopped = stopping_criteria(sequence[:, :length], None)
                if stream_to is not None:
                    stream_to.put(sequence[0, length - 1 : length].cpu())
                if stopped.all():
                    break
        # 4. What a round emitted behind the end is dropped.
        if answer.finish is None or len(prompt) + len(answer.tokens) > length:
            del answer.tokens[length - len(prompt) :]
            answer.finish = "stop"
        if stream_to is not None:
            stream_to.end()
        return sequence[:, :length]

    def _build(self, model: PreTrainedModel) -> Built:
        check_supported(model.config)
        config, head = text_config(model.config), self._head
        if model.dtype == torch.bfloat16 and training_dtype(model.device.type) != "bfloat16":
            warnings.warn(
                "this processor has no bfloat16 instructions, and verifying several rows at a time "
                "in bfloat16 is slower on it than `generate` is: load the model with "
                "dtype=torch.float32",
                stacklevel=2,
            )
        folder = model.config.name_or_path  # of the model's checkpoint, or its hub id
        # 1. The head; one that is given loaded is copied, and looked at for changes.
        given, layers = head if isinstance(head, DraftHead) else nn.Module(), ()
        if isinstance(head, DraftHead):
            head = copy.deepcopy(head)
        elif head is not None:
            head = load_head(head or default_head(EMBEDDED_TARGET), config, target=folder)
        if head is not None:
            head.config.check_fits(config)
            layers = head.config.fused_layers(config.num_hidden_layers)
        # 2. A shallow copy of the model runs its own layers, takes the generation config that a
        # Target gives it, and does not keep the model alive.
        target = Target(copy.copy(model), feature_layers=layers)
        check_target(target)
        # 3. A tokenizer beside the model's weights tells what ends a turn.
        tokenizer = None
        if folder and not self._generate_ends:
            with suppress(*UNLOADABLE):  # token ids are all that is needed
                tokenizer = AutoTokenizer.from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False
                )
        loaded = Model(target, tokenizer, head_drafter(head, target, self._tree))
        if tokenizer is not None:
            tell_added(loaded.ends, folder)
        held = proxy(model)  # a key of the table of what is built, which must not keep it alive

        def read() -> list[nn.Module | torch.Tensor | None]:
            lm_head = held.get_output_embeddings()
            parts = [lm_head, lm_head.weight, lm_head.bias, text_body(held)]
            return [*parts, held.get_input_embeddings(), *given.parameters(), *given.buffers()]

        return Built(loaded, self._arm.build_drafter(loaded), Seen(read))


custom_generate = DecodingMethod  # as users name it, after the argument that takes it


def _emitted(answer: Generation, rounds: Iterator[Round]) -> Iterator[int]:
    """Each token in turn; the answer has taken in its round."""
    for step in rounds:
        answer.add(step)
        yield from step.tokens


def _read_request(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    asked: GenerationConfig,
    processors: LogitsProcessorList,
    rest: dict[str, object],
) -> SamplingConfig:
    """The sampling that is asked for; refuses all but one prompt on a plain model, decoded greedily
    or by sampling."""
    # 1. Sampling, whose own logits processors are those that `generate` made of it.
    chosen = {name: getattr(asked, name) for name in ("temperature", "top_k", "top_p")}
    chosen = {"temperature": 1.0} | {n: value for n, value in chosen.items() if value is not None}
    sampling = SamplingConfig(**chosen) if asked.do_sample else SamplingConfig()
    own = [sampling.temperature not in (0, 1), sampling.top_k > 0, sampling.top_p < 1]
    names = ", ".join(type(processor).__name__ for processor in processors)
    # 2. What is there of all that is not honoured.
    B, T = input_ids.shape
    mode = asked.get_generation_mode().value
    attention, readout = model.config._attn_implementation, model.get_output_embeddings()
    mask, position = rest.get("attention_mask"), rest.get("position_ids")
    found = {
        "a model in training mode (call model.eval())": model.training,
        f"{attention} (model.set_attn_implementation('sdpa'))": attention not in ("eager", "sdpa"),
        f"a {type(readout).__name__} as lm_head": not isinstance(readout, nn.Linear),
        mode: mode not in ("greedy_search", "sample"),
        "num_return_sequences": (asked.num_return_sequences or 1) > 1,
        f"a batch of {B}": B > 1,
        "padding": mask is not None and not mask.all(),
        "position_ids": position is not None and position[0].tolist() != list(range(T)),
        "a cache (past_key_values)": any(
            getattr(rest.get(name), "_is_user_defined", False) for name in CACHE_NAMES
        ),
        "cache_implementation": asked.cache_implementation,
        "return_dict_in_generate": asked.return_dict_in_generate,
        f"{names} (not of temperature, top_k and top_p)": len(processors) > sum(own),
    }
    # an empty dict is what a multimodal model's `generate` gives for no images
    given = {name for name, value in rest.items() if not (isinstance(value, dict) and not value)}
    found |= {name: rest[name] is not None for name in given - {*FORWARD}}
    if refused := [name for name, there in found.items() if there]:
        defaults = generation_defaults(model.generation_config).items()
        defaults = ", ".join(f"{n}={value!r:.50}" for n, value in defaults if n not in HONOURED)
        remedy = "leave that out"
        if defaults:
            remedy += (
                f"; the model's own generation_config sets {defaults}: give the call another value "
                "(repetition_penalty=1.0; of lm-eval by --gen_kwargs), or take it out there"
            )
        raise BadInput(
            "eagle_fsd decodes one prompt of token ids, greedily or by sampling, without "
            f"{', '.join(refused)}: {remedy}"
        )
    return sampling
