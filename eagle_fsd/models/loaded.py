"""What a command or a script holds once everything is loaded."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from eagle_fsd.decoding.drafter import Drafter
from eagle_fsd.decoding.loop import StopConfig
from eagle_fsd.decoding.target import Target
from eagle_fsd.models.chat import Message, prompt_ids, template_stops


@dataclass(frozen=True)
class Model:
    """A loaded target with its drafter; one answer at a time."""

    target: Target
    tokenizer: PreTrainedTokenizerBase
    drafter: Drafter
    conv_template: str = ""

    def stop(self, max_new_tokens: int, strings: tuple[str, ...] = ()) -> StopConfig:
        """The budget, and all that ends an answer: the generation config's tokens, the tokenizer's
        end token, the conversation template's stops, and the strings given."""
        template_strings, template_ids = template_stops(self.conv_template)
        ids = [*self.target.eos_token_ids, *template_ids]
        if self.tokenizer.eos_token_id is not None:
            ids.append(self.tokenizer.eos_token_id)
        strings = tuple(dict.fromkeys([*template_strings, *strings]))
        return StopConfig(max_new_tokens, tuple(dict.fromkeys(ids)), strings, self.text)

    def prompt_ids(self, prompt: str | list[Message]) -> list[int]:
        """A user turn, or a whole conversation, through the chat template."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return prompt_ids(self.tokenizer, messages, conv_template=self.conv_template)

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids, skip_special_tokens=True)
