"""A target and what drafts for it, loaded; and messages to its prompt tokens: by the tokenizer's
chat template, or by one of FastChat's."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput, TreeConfig, as_tree, check_text, one_line
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.tree import Drafter
from eagle_fsd.drafters.eagle import head_drafter
from eagle_fsd.heads.files import UNREADABLE
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

Message = dict[str, str]  # {"role": "user" | "assistant" | "system", "content": text}


@dataclass(frozen=True)
class Model:
    """A target with its drafter; one answer at a time.

    Attributes:
        tokenizer: None: token ids only (transformers_generate.py).
        drafter: of the head.
        draft_model: what drafters/language_model.py drafts with.
    """

    target: Target
    tokenizer: PreTrainedTokenizerBase | None
    drafter: Drafter
    conv_template: str = ""
    draft_model: Target | None = None

    @property
    def max_positions(self) -> int:
        """Longest text for which all of its models were made."""
        return min(m.max_positions for m in (self.target, self.draft_model) if m is not None)

    def stop(self, max_new_tokens: int, strings: str | Sequence[str] = ()) -> StopConfig:
        """The budget, and all that ends an answer: the generation config's tokens, the tokenizer's
        end token, the conversation template's stops, and the strings given."""
        template_strings, template_ids = template_stops(self.conv_template)
        ids = [*self.target.eos_token_ids, *template_ids]
        if self.tokenizer.eos_token_id is not None:
            ids.append(self.tokenizer.eos_token_id)
        strings = tuple(dict.fromkeys([*template_strings, *_each(strings)]))
        return StopConfig(max_new_tokens, tuple(dict.fromkeys(ids)), strings, self.tokenizer.decode)

    def prompt_ids(self, prompt: str | list[Message]) -> list[int]:
        """A user turn, or a whole conversation, through the chat template."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return prompt_ids(self.tokenizer, messages, conv_template=self.conv_template)

    def text(self, token_ids: list[int], stop_strings: str | Sequence[str] = ()) -> str:
        """Without special tokens, and up to the first stop string: of the template's, and of these.

        Example: of the tokens "a", "b\\nU", "ser" with the stop string "User" it is "ab\\n".
        """
        strings = [*template_stops(self.conv_template)[0], *_each(stop_strings)]
        whole, end = self.tokenizer.decode(token_ids) if strings else "", ""
        starts = [whole.index(string) for string in strings if string in whole]
        if starts:
            whole = whole[: min(starts)]
            while not whole.startswith(before := self.tokenizer.decode(token_ids)):
                token_ids = token_ids[:-1]
            end = whole[len(before) :]  # what the string's first token has in front of it
        return self.tokenizer.decode(token_ids, skip_special_tokens=True) + end

    def text_ends(
        self, token_ids: list[int], stop_strings: str | Sequence[str] = (), *, first: int = 0
    ) -> list[int]:
        """How many characters `text` has up to and with each of the tokens from `first` on. Beyond
        a stop string that a later token completes there may be more than the whole text has.

        Example: of " blue", "!" and a stop token: 5 6 6.
        """
        counts = range(first + 1, len(token_ids) + 1)
        return [len(self.text(token_ids[:count], stop_strings)) for count in counts]


def load(
    target: str = EMBEDDED_TARGET,
    *,
    head: str | None = "",
    draft_model: str = "",
    tree: TreeConfig | str | None = None,
    dtype: str = "",
    device: str = "cpu",
    conv_template: str = "",
    engine: str = "auto",
    keep_stock: bool = False,
) -> Model:
    """Load a target and a draft head; BadInput, before weights load, if they cannot be.

    A line on standard error names the dtype and the threads. On a CPU that others keep busy
    torch's threads are lowered for the whole process (engine/threads.py), and the line gives the
    reason. A torch.set_num_threads after it holds.

    Args:
        target, dtype, device, engine: see load.py; dtype "" is that of default_dtype.
        head: folder or hub id of a draft head; "mtp" is the MTP layer that the target's own
            checkpoint brings (heads/mtp_files.py); "" is the shipped one (smollm2 only), or a
            random one for a random target; None decodes without drafts.
        draft_model: a language model with the target's tokenizer, named as targets are, for arms
            with `@language_model`; or "layers:N", the target's own first N layers. "": none.
        tree: shape of the draft tree, a TreeConfig or as arms write it ("5x3x4"); default:
            default_tree.
        conv_template: a FastChat template, see prompt_ids.
        keep_stock: keep a stock model beside, for transformers' own generate.
    """
    tree = as_tree(tree)
    template_stops(conv_template)  # its name is checked
    config = load_target_config(target)
    draft_head, layers = None, ()
    if head is not None:
        draft_head = load_head(head or default_head(target), config, target=target)
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


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], *, conv_template: str = ""
) -> list[int]:
    """Token ids of a conversation up to where the assistant's next turn begins. A FastChat template
    is named for tokenizers without one; BadInput: there is none, or it refuses these messages, or a
    message is empty or no text."""
    turns = [message["content"] for message in messages if message["role"] == "user"]
    if not turns or not all(turn.strip() for turn in turns):
        raise BadInput("the prompt is empty: give some text")
    for message in messages:
        check_text(message["content"])
    if conv_template:
        template = _conversation(conv_template)
        user, assistant = template.roles
        for message in messages:
            if message["role"] == "system":
                template.set_system_message(message["content"])
            else:
                role = user if message["role"] == "user" else assistant
                template.append_message(role, message["content"])
        template.append_message(assistant, None)
        return tokenizer(template.get_prompt()).input_ids
    if tokenizer.chat_template is None:
        raise BadInput(
            "this target's tokenizer has no chat template: name one of FastChat's with "
            "conv_template (vicuna_v1.1, llama-2, ...); make_data.py has no such option: "
            "there, or for a template of your own, put a chat_template.jinja into the target's "
            "folder"
        )
    with template_errors():
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )


@contextmanager
def template_errors() -> Iterator[None]:
    """Around the use of a tokenizer's chat template, a program that a target brings along: BadInput
    with its words where it refuses the messages or is broken."""
    try:
        yield
    # raise_exception, undefined names and syntax; and what Python says of its other expressions
    except (TemplateError, *UNREADABLE) as error:
        raise BadInput(
            f"this target's chat template does not take the conversation ({one_line(error)}): name "
            "one of FastChat's with conv_template, or mend chat_template.jinja in the target's "
            "folder"
        ) from error


def template_stops(conv_template: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Stop strings and stop token ids of a FastChat template; none for the tokenizer's own."""
    if not conv_template:
        return (), ()
    template = _conversation(conv_template)
    return _each(template.stop_str or ()), tuple(template.stop_token_ids or ())


def _each(strings: str | Sequence[str]) -> tuple[str, ...]:
    return (strings,) if isinstance(strings, str) else tuple(strings)


def _conversation(name: str):
    """FastChat's template of that name, an empty conversation; BadInput if there is none."""
    from fastchat.conversation import conv_templates, get_conv_template

    if name not in conv_templates:
        raise BadInput(f"unknown conv_template {name!r}; known: {', '.join(conv_templates)}")
    return get_conv_template(name)
