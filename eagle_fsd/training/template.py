"""What a tokenizer's chat template says about turns: where they begin, what ends them, whose tokens
are whose.

All of it is found by comparing renderings of the template; no marker and no offset is written here.

    <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello<|im_end|>\\n
    `- user prefix -'  `-turn end-'                       `--- mask 1 ---'
"""

import re

from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput
from eagle_fsd.models.chat import Message, prompt_ids

MARK = "Sentinel7341"


class ChatFormat:
    """A tokenizer's chat template, taken apart.

    Attributes:
        end_ids: tokens that end an assistant's turn.

    Raises:
        BadInput: the tokenizer has no chat template, or nothing tells where a turn ends.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        prompt_ids(tokenizer, [{"role": "user", "content": MARK}])  # refuses a missing template
        ends = {tokenizer.eos_token_id} - {None}
        user = {"role": "user", "content": "Hi"}
        text = self._render([user, {"role": "assistant", "content": MARK}], answer_next=False)
        self.end_ids = frozenset(ends | self._first_special(text.rpartition(MARK)[2]))
        if not self.end_ids:
            raise BadInput("the chat template and tokenizer name no token that ends an answer")

    def user_prefix(self) -> tuple[list[int], frozenset[int]]:
        """Tokens up to where the user's first turn begins, and the tokens that end that turn.

        Raises:
            BadInput: no special token follows a user's turn, so that none can be sampled.
        """
        text = self._render([{"role": "user", "content": MARK}], answer_next=True)
        before, _, after = text.partition(MARK)
        ends = self._first_special(after)
        if not ends:
            raise BadInput(
                "source self: no special token follows the user's turn in this target's chat "
                "template, so its turns cannot be sampled; give prompts by other --sources"
            )
        return self._tokens(before), frozenset(ends | self.end_ids)

    def text(self, token_ids: list[int]) -> str:
        """Text of a sampled turn, without its end token."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def prompt(self, messages: list[Message]) -> list[int]:
        """Tokens up to where the assistant answers."""
        return prompt_ids(self.tokenizer, messages)

    def extend(self, ids: list[int], messages: list[Message], turn: str) -> list[int] | None:
        """`ids` with the user's next turn, up to where the assistant answers again.

        The tokens so far are kept as they were sampled: only what follows them is tokenised.

        Args:
            ids: tokens so far, the end token of the assistant's last answer included.
            messages: what these tokens say.
            turn: the user's next turn.

        Returns:
            None if the template writes the past differently once it goes on (drops the reasoning
            of earlier answers, say), or trims the answer.
        """
        text = self._render([*messages, {"role": "user", "content": turn}], answer_next=True)
        end = self.tokenizer.decode(ids[-1:])
        start = self._render(messages[:-1], answer_next=True) + messages[-1]["content"] + end
        if not text.startswith(start):
            return None
        return ids + self._tokens(text[len(start) :])

    def given(self, messages: list[Message]) -> tuple[list[int], list[int]] | None:
        """Tokens of a whole conversation, and 1 for those of the assistant, end tokens included.

        A template with {% generation %} gives the mask itself. Else an assistant's tokens are those
        between the rendering up to its turn and the first end token behind.

        Returns:
            None if the template renders a part differently from the same part of the whole.
        """
        if re.search(r"{%-?\s*generation", self._template()):
            out = self.tokenizer.apply_chat_template(
                messages, return_dict=True, return_assistant_tokens_mask=True
            )
            return list(out["input_ids"]), list(out["assistant_masks"])
        whole = self._render(messages, answer_next=False)
        encoded = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        ids, starts = encoded["input_ids"], [start for start, _ in encoded["offset_mapping"]]
        mask = [0] * len(ids)
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:i], answer_next=True)
            after = self._render(messages[: i + 1], answer_next=False)
            if not (whole.startswith(after) and after.startswith(before)):
                return None
            for place, start in enumerate(starts):
                if len(before) <= start < len(after):
                    mask[place] = 1
                    if ids[place] in self.end_ids:
                        break
        return ids, mask

    def _template(self) -> str:
        template = self.tokenizer.chat_template
        return template if isinstance(template, str) else template["default"]

    def _render(self, messages: list[Message], *, answer_next: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answer_next
        )

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _first_special(self, text: str) -> set[int]:
        """The token that `text` begins with, white space aside, if it is a special one."""
        for token in self._tokens(text):
            added = token in self.tokenizer.added_tokens_decoder
            if added or token in self.tokenizer.all_special_ids:
                return {token}
            if self.tokenizer.decode([token]).strip():
                break
        return set()
