"""What a tokenizer's chat template says about turns: where they begin, and what ends them.

All of it is found by comparing renderings of the template; no marker and no offset is written here.

    <|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\nHello<|im_end|>\\n
    `- user prefix -'  `-turn end-'                       `-- answer --'
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput
from eagle_fsd.models.loaded import Message, prompt_ids

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
        self.prompt([{"role": "user", "content": MARK}])  # refuses a missing template
        user = {"role": "user", "content": "Hi"}
        text = self._render([user, {"role": "assistant", "content": MARK}], answer_next=False)
        ends = self._first_special(text.rpartition(MARK)[2])
        self.end_ids = frozenset(ends | ({tokenizer.eos_token_id} - {None}))
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
        return self._tokens(before), self.end_ids | ends

    def text(self, token_ids: list[int]) -> str:
        """Text of a sampled turn, without its end token."""
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)

    def prompt(self, messages: list[Message], ids: Sequence[int] = ()) -> list[int] | None:
        """Tokens up to where the assistant answers the last message.

        Args:
            messages: the conversation.
            ids: its tokens up to the end token of the assistant's last answer, as they were
                sampled: they are kept, and only what follows them is tokenised.

        Returns:
            None if the template writes the past differently once it goes on (drops the reasoning
            of earlier answers, say), or trims the answer.
        """
        if not ids:
            return prompt_ids(self.tokenizer, messages)
        text = self._render(messages, answer_next=True)
        *before, answer, _ = messages
        end = self.tokenizer.decode(ids[-1:])
        start = self._render(before, answer_next=True) + answer["content"] + end
        return [*ids, *self._tokens(text[len(start) :])] if text.startswith(start) else None

    def answer(self, messages: list[Message]) -> list[int]:
        """Tokens of the last message, an answer that is given, up to its end token.

        Returns:
            Nothing if the template does not write it behind its own prompt.
        """
        before = self._render(messages[:-1], answer_next=True)
        text = self._render(messages, answer_next=False)
        if not text.startswith(before):
            return []
        ids = self._tokens(text[len(before) :])
        end = next((i for i, token in enumerate(ids) if token in self.end_ids), len(ids))
        return ids[: end + 1]

    def _render(self, messages: list[Message], *, answer_next: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answer_next
        )

    def _tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def _first_special(self, text: str) -> set[int]:
        """The token that `text` begins with, white space aside, if it is a special one."""
        for token in self._tokens(text):
            if token in {*self.tokenizer.added_tokens_decoder, *self.tokenizer.all_special_ids}:
                return {token}
            if self.tokenizer.decode([token]).strip():
                break
        return set()
