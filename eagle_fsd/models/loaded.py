"""A target and what drafts for it, loaded; prompts in, texts of answers out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import TreeConfig, as_tree
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.messages import Message
from eagle_fsd.models.assets import EMBEDDED_TARGET
from eagle_fsd.models.chat import (
    TurnEnds,
    each_string,
    fastchat_template,
    prompt_ids,
    settle_template,
    tell_added,
    turn_ends,
)
from eagle_fsd.models.load import (
    check_draft_model,
    chosen_device,
    default_dtype,
    default_head,
    load_head,
    load_target,
    load_target_config,
    load_tokenizer,
    own_layers,
)
from eagle_fsd.models.prefixes import prefix_texts, settled
from eagle_fsd.thoughts import Marks, Thought, find_thought


@dataclass(frozen=True)
class Model:
    """A target with its drafter; any number of their answers may be under way. See `load` for what
    is not explained."""

    target: Target
    tokenizer: PreTrainedTokenizerBase | None  # None: token ids only (transformers_generate.py)
    drafter: Drafter  # of the head
    conv_template: str = ""
    draft_model: Target | None = None
    generate_ends: bool = False
    marks: Marks = ()
    foreign_ids: Sequence[int] = ()  # of the draft model's tokens that the tokenizer lacks
    system: str = ""

    @property
    def max_positions(self) -> int:
        """Longest text for which all of its models were made."""
        return min(m.max_positions for m in (self.target, self.draft_model) if m is not None)

    @cached_property
    def ends(self) -> TurnEnds:
        return turn_ends(
            self.tokenizer,
            self.target.eos_token_ids,
            conv_template=self.conv_template,
            generate_ends=self.generate_ends,
        )

    def stop(self, max_new_tokens: int, strings: str | Sequence[str] = ()) -> StopConfig:
        """The budget, what ends a turn, and the strings given."""
        strings = tuple(dict.fromkeys([*self.ends.strings, *each_string(strings)]))
        return StopConfig(max_new_tokens, self.ends.ids, strings, self.tokenizer.decode)

    def prompt_ids(self, prompt: str | list[Message]) -> list[int]:
        """A user turn, or a whole conversation, through the chat template."""
        return prompt_ids(
            self.tokenizer, prompt, conv_template=self.conv_template, system=self.system
        )

    def text(self, token_ids: list[int], stop_strings: str | Sequence[str] = ()) -> str:
        """Without special tokens, and up to the first stop string: of the template's, and of these.

        Example: of the tokens "a", "b\\nU", "ser" with the stop string "User" it is "ab\\n".
        """
        strings = [*self.ends.strings, *each_string(stop_strings)]
        whole, end = self.tokenizer.decode(token_ids) if strings else "", ""
        starts = [whole.index(string) for string in strings if string in whole]
        if starts:
            whole = whole[: min(starts)]
            while not whole.startswith(before := self.tokenizer.decode(token_ids)):
                token_ids = token_ids[:-1]
            end = whole[len(before) :]  # what the string's first token has in front of it
        return self.tokenizer.decode(token_ids, skip_special_tokens=True) + end

    def settled(self, text: str, token_ids: list[int]) -> str:
        """As much of the text of tokens as no later token changes: where a tokenizer writes
        characters as bytes (Llama 2, Gemma), without those at its end."""
        return settled(self.tokenizer, text, token_ids)

    def text_ends(
        self, token_ids: list[int], stop_strings: str | Sequence[str] = (), *, first: int = 0
    ) -> list[int]:
        """How many characters `text` has up to and with each of the tokens from `first` on. Beyond
        a stop string that a later token completes there may be more than the whole text has.

        Example: of " blue", "!" and a stop token: 5 6 6.
        """
        strings = [*self.ends.strings, *each_string(stop_strings)]
        shown = prefix_texts(self.tokenizer, token_ids, first=first, skip_special_tokens=True)
        ends = [*map(len, shown)]
        # a stop string, which may hold special tokens, ends the text in front of it
        for place, whole in enumerate(
            prefix_texts(self.tokenizer, token_ids, first=first) if strings else ()
        ):
            if any(string in whole for string in strings):
                ends[place] = len(self.text(token_ids[: first + place + 1], stop_strings))
        return ends

    def find_thought(self, prompt: list[int], token_ids: list[int]) -> Thought:
        """What of the text of an answer to a prompt is thought."""
        text = self.text(token_ids)
        return find_thought(self.tokenizer, prompt, token_ids, text, self.marks)


def load(
    target: str = EMBEDDED_TARGET,
    *,
    head: str | None = "",
    draft_model: str = "",
    tree: TreeConfig | str | None = None,
    dtype: str = "",
    device: str = "",
    conv_template: str = "",
    system: str = "",
    template_settings: Mapping[str, object] | None = None,
    date: datetime | None = None,
    generate_ends: bool = False,
    marks: Marks = (),
    engine: str = "auto",
    keep_stock: bool = False,
) -> Model:
    """Load a target and a draft head; BadInput, before weights load, if they cannot be. Threads are
    lowered for the whole process where others keep the CPU busy (engine/threads.py).

    Args:
        target, dtype, device, engine: see load.py; "" is the machine's, as options.py has it.
        head: folder or hub id of a draft head; "mtp" is the MTP layer that the target's own
            checkpoint brings (heads/mtp_files.py); "" is the shipped one (smollm2 only), or a
            random one for a random target; None decodes without drafts.
        draft_model: a language model with the target's tokenizer, named as targets are, for arms
            with `@language_model`; or "layers:N", the target's own first N layers. "": none.
        tree: shape of the draft tree, a TreeConfig or as arms write it ("5x3x4"); default:
            default_tree.
        conv_template: a FastChat template, see prompt_ids.
        system: the system message of every conversation that begins with none of its own.
        template_settings: what the target's chat template reads beside the messages, transformers'
            chat_template_kwargs, such as {"enable_thinking": False}.
        date: the one that a chat template may write; default: the clock's, at every prompt.
        generate_ends: end answers where `generate` does, at the tokens of generation_config alone.
        marks: around the thoughts of a reasoning target, ((begin, end), ...), where neither its
            template nor its tokens show them.
        keep_stock: keep a stock model beside, for transformers' own generate.
    """
    tree, device = as_tree(tree), chosen_device(device)
    if conv_template:
        fastchat_template(conv_template)  # its name is checked
    check_chat(target, system, template_settings, conv_template=conv_template)
    config = load_target_config(target)
    draft_head, layers = None, ()
    if head is not None:
        draft_head = load_head(head or default_head(target), config, target=target)
        layers = draft_head.config.fused_layers(config.num_hidden_layers)
    foreign_ids = check_draft_model(draft_model, target) if draft_model else []
    loaded, tokenizer = load_target(
        target,
        dtype=dtype or default_dtype(device),
        device=device,
        feature_layers=layers,
        engine=engine,
        keep_stock=keep_stock,
    )
    settle_template(tokenizer, template_settings, date=date)
    pair = None
    if count := own_layers(draft_model):
        pair = loaded.first_layers(count)
    elif draft_model:
        placed = {"dtype": str(loaded.dtype).removeprefix("torch."), "device": str(loaded.device)}
        pair, _ = load_target(draft_model, **placed, engine=engine, keep_stock=False, drafts=True)
    drafter = head_drafter(draft_head, loaded, tree)
    model = Model(
        *(loaded, tokenizer, drafter, conv_template, pair, generate_ends, marks, foreign_ids),
        system=system,
    )
    tell_added(model.ends, target)
    return model


def check_chat(target: str, system: str, settings: Mapping | None, *, conv_template: str) -> None:
    """Refuse a system message for which the target's template has no place, and settings that it
    does not read, before weights load."""
    if system or settings:
        tokenizer = load_tokenizer(target)
        settle_template(tokenizer, settings, conv_template=conv_template)
        prompt_ids(tokenizer, "Hi", conv_template=conv_template, system=system)
