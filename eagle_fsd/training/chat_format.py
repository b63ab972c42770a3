"""A target's chat, taken apart: where a user's turn begins and ends, and how a conversation goes on
behind tokens that were sampled."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput
from eagle_fsd.messages import Message
from eagle_fsd.models.chat import (
    TurnEnds,
    broken_up,
    encode,
    first_special,
    new_mark,
    prompt_ids,
    render,
    turn_ends,
)


@dataclass(frozen=True)
class ChatFormat:
    """A target's prompts, by its chat template or FastChat's of a name, which is taken apart by
    comparing renderings; no marker is written here.

        <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
        `- user prefix -'  `-turn end-'                       `-- answer --'
    """

    tokenizer: PreTrainedTokenizerBase
    conv_template: str = ""
    system: str = ""  # the system message of conversations that have none

    def __post_init__(self):
        talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        for messages in talk[:1], talk:
            self._render(self.opening + messages)
        if strings := self.ends().strings:
            raise BadInput(
                f"conv_template {self.conv_template!r} ends answers by the text {strings[0]!r}, "
                "and here only tokens end them: name a template that does so"
            )

    @property
    def opening(self) -> list[Message]:
        """What stands before the user's first turn."""
        return [{"role": "system", "content": self.system}] if self.system else []

    def _render(self, messages: list[Message]) -> str:
        return render(self.tokenizer, messages, conv_template=self.conv_template)

    def _encode(self, text: str) -> list[int]:
        return encode(self.tokenizer, text, begins=bool(self.conv_template))

    def ends(self, eos_token_ids: Sequence[int] = ()) -> TurnEnds:
        return turn_ends(self.tokenizer, eos_token_ids, conv_template=self.conv_template)

    def user_prefix(self) -> tuple[list[int], frozenset[int]]:
        """Tokens up to where the user's first turn begins, and the tokens that end that turn."""
        mark = new_mark(self.system, str(self.tokenizer.chat_template))
        talk = [*self.opening, {"role": "user", "content": mark}]
        text = self._render(broken_up(self.tokenizer, talk))
        before, _, after = text.partition(mark)
        ends = first_special(self.tokenizer, after)
        if not ends:
            raise BadInput(
                "source self: no special token follows the user's turn in this target's chat "
                "template, so its turns cannot be sampled; give prompts by other --sources"
            )
        return self._encode(before), ends | {*self.ends().ids}

    def prompt(self, messages: list[Message], ids: Sequence[int] = ()) -> list[int]:
        """Tokens up to where the assistant answers the last message.

        `ids` are the conversation's up to the end token of the assistant's last answer, as they
        were sampled. They are kept, and only what follows them is tokenised, unless the template
        writes the past differently once it goes on: drops the thoughts of earlier answers, or trims
        them. The prompt is then the template's.
        """
        if not ids:
            return prompt_ids(self.tokenizer, messages, conv_template=self.conv_template)
        messages = broken_up(self.tokenizer, messages)
        text = self._render(messages)
        *before, answer, _ = messages
        end = self.tokenizer.decode(ids[-1:])
        start = self._render(before) + answer["content"] + end
        # behind the end token, which may take in the white space that follows it
        after = encode(self.tokenizer, end + text[len(start) :])
        if text.startswith(start) and after[:1] == ids[-1:]:
            return [*ids, *after[1:]]
        return self._encode(text)
