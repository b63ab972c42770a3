"""The Python call: load a target and its head, generate or stream an answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import DEFAULT_ARM, SamplingConfig, TreeConfig
from eagle_fsd.decoding.drafter import Drafter, RootDrafter
from eagle_fsd.decoding.loop import DecodeConfig, Generation, StopConfig, decode_rounds
from eagle_fsd.decoding.target import Target
from eagle_fsd.drafters.eagle import EagleDrafter
from eagle_fsd.heads.draft_head import DraftHead
from eagle_fsd.models.assets import EMBEDDED_TARGET
from eagle_fsd.models.load import (
    check_draft_model,
    default_dtype,
    default_head,
    load_draft_model,
    load_head,
    load_target,
    load_target_config,
)
from eagle_fsd.models.loaded import Message, Model, template_stops

SMALL_TREE = TreeConfig(num_draft_tokens=15, tree_depth=4, branch_top_k=6)


def default_tree(device: str) -> TreeConfig:
    """15 drafts on a CPU, where a wide verification costs much, 59 on any other device."""
    return SMALL_TREE if device == "cpu" else TreeConfig()


@dataclass
class Answer(Generation):
    """A Generation and its text."""

    text: str = ""


def load(
    target: str = EMBEDDED_TARGET,
    *,
    head: str | None = "",
    draft_model: str = "",
    tree: TreeConfig | None = None,
    dtype: str = "",
    device: str = "cpu",
    conv_template: str = "",
    engine: str = "auto",
    keep_stock: bool = False,
) -> Model:
    """Load a target and a draft head; BadInput, before weights load, if they cannot be.

    Args:
        target, dtype, device, engine: see models/load.py; dtype "" is bfloat16 where it is fast.
        head: folder or hub id of a draft head; "" is the shipped one (smollm2 only), or a random
            one for a random target; None decodes without drafts.
        draft_model: a language model with the target's tokenizer, named as targets are, for arms
            with `@language_model`; or "layers:N", the target's own first N layers. "": none.
        tree: shape of the draft tree; default: default_tree.
        conv_template: see models/loaded.py.
        keep_stock: keep a stock model beside, for transformers' own generate.
    """
    template_stops(conv_template)  # its name is checked
    config = load_target_config(target)
    draft_head, layers = None, ()
    if head is not None:
        draft_head = load_head(head or default_head(target), config)
        layers = draft_head.config.fused_layers(config.num_hidden_layers)
    if draft_model:
        check_draft_model(draft_model, target)
    loaded, tokenizer = load_target(
        target,
        dtype=dtype or default_dtype(device),
        device=device,
        feature_layers=layers,
        engine=engine,
        keep_stock=keep_stock,
    )
    pair = load_draft_model(draft_model, loaded, engine=engine) if draft_model else None
    return Model(loaded, tokenizer, head_drafter(draft_head, loaded, tree), conv_template, pair)


def head_drafter(head: DraftHead | None, target: Target, tree: TreeConfig | None) -> Drafter:
    """The head, moved to the target, growing trees of that shape or of the default one."""
    if head is None:
        return RootDrafter()
    head.to(target.device, target.dtype)
    return EagleDrafter(head, target, tree or default_tree(target.device.type))


def generate(model: Model, prompt: str | list[Message], **settings) -> Answer:
    """Answer a prompt; the settings are those of `stream`.

    Example:
        >>> model = eagle_fsd.load("smollm2")
        >>> answer = eagle_fsd.generate(model, "Why is the sky blue?", arm="fsd:0.35")
        >>> print(answer.text, answer.tokens_per_round, answer.fuzzy_share)
    """
    *_, (_, answer) = stream(model, prompt, **settings)
    return answer


def stream(
    model: Model,
    prompt: str | list[Message],
    *,
    arm: str = DEFAULT_ARM,
    temperature: float = SamplingConfig.temperature,
    top_k: int = SamplingConfig.top_k,
    top_p: float = SamplingConfig.top_p,
    max_new_tokens: int = StopConfig.max_new_tokens,
    stop_strings: str | Sequence[str] = (),
    seed: int = 0,
) -> Iterator[tuple[str, Answer]]:
    """Answer a prompt, yielding (new text, answer so far) after every round.

    Args:
        prompt: a user turn, or messages with role and content.
        arm: how drafts are accepted and made, such as "exact", "fsd:0.35", "path:0.5@eagle:7x3x4"
            or "plain"; see arms.py.
        temperature, top_k, top_p: see SamplingConfig.
        max_new_tokens, stop_strings: see StopConfig; the target's stop tokens always end an answer.
            The text ends in front of a stop string.
        seed: of all randomness.

    Raises:
        BadInput: a setting is out of range, or prompt + budget is beyond the target's positions.
    """
    chosen = parse_arm(arm)
    chosen.check_answers()
    policy = chosen.policy(SamplingConfig(temperature, top_k, top_p))
    config = DecodeConfig(policy, model.stop(max_new_tokens, stop_strings), seed)
    drafter = chosen.build_drafter(model)
    strings = config.stop.strings
    begun = [string[:n] for string in strings for n in range(1, len(string))]
    answer = Answer()
    for step in decode_rounds(model.target, drafter, model.prompt_ids(prompt), config):
        answer.add(step)
        text = model.text(answer.tokens, strings)
        if step.finish is None and text.endswith(("\N{REPLACEMENT CHARACTER}", *begun)):
            continue  # half a character, or maybe of a stop string; a later round tells
        new, answer.text = text[len(answer.text) :], text
        yield new, answer
