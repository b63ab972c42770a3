"""What ends a turn, and with it an answer."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from eagle_fsd.config import BadInput
from eagle_fsd.models.chat import fastchat_template, render
from eagle_fsd.models.control_tokens import encode

MARK = "Sentinel7341"  # the content of a message in a rendering that is taken apart


class TurnEnds(NamedTuple):
    """What ends an answer.

    Attributes:
        ids, strings: of all sources.
        added: the tokens that generation_config lacks, as text.
    """

    ids: tuple[int, ...]
    strings: tuple[str, ...]
    added: tuple[str, ...]


def turn_ends(
    tokenizer: PreTrainedTokenizerBase,
    eos_token_ids: Sequence[int],
    *,
    conv_template: str = "",
    generate_ends: bool = False,
) -> TurnEnds:
    """What ends an answer of a target, for every loop of ours: the end tokens of its
    generation_config, the tokenizer's end token, the token with which its chat template ends an
    assistant's turn; and of a FastChat template its stop strings and tokens.

    Args:
        eos_token_ids: of generation_config.
        generate_ends: these alone, and those of a FastChat template that was asked for.
    """
    strings, asked = template_stops(conv_template)
    own = []
    if not generate_ends:
        own = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        if not conv_template:
            own += sorted(template_end(tokenizer))
    ids = tuple(dict.fromkeys([*eos_token_ids, *asked, *own]))
    added = [token for token in dict.fromkeys(own) if token not in eos_token_ids]
    return TurnEnds(ids, strings, tuple(map(tokenizer.decode, added)))


def tell_added(ends: TurnEnds, target: str) -> None:
    """Say once, on standard error, where answers of a target end and `generate` goes on."""
    if ends.added:
        print(
            f"eagle_fsd: answers of target {target!r} also end at {' and at '.join(ends.added)}, "
            "the end of a turn by its tokenizer or its chat template, which its generation_config "
            "lacks; with generate_ends they go on there, as in transformers' generate",
            file=sys.stderr,
        )


def template_end(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The token with which the chat template ends an assistant's turn, if it is an added or special
    one; none where the template takes no answer, or there is none."""
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": MARK}]
    try:
        text = render(tokenizer, talk, answer_next=False)
    except BadInput:
        return set()
    return first_special(tokenizer, text.rpartition(MARK)[2])


def first_special(tokenizer: PreTrainedTokenizerBase, text: str) -> set[int]:
    """The token that a rendering begins with, white space aside, if it is an added or special
    one."""
    special = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids}
    visible = (t for t in encode(tokenizer, text) if tokenizer.decode([t]).strip())
    return {next(visible, None)} & special


def template_stops(conv_template: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Stop strings and stop token ids of a FastChat template; none for the tokenizer's own."""
    if not conv_template:
        return (), ()
    template = fastchat_template(conv_template)
    return each_string(template.stop_str or ()), tuple(template.stop_token_ids or ())


def each_string(strings: str | Sequence[str]) -> tuple[str, ...]:
    return (strings,) if isinstance(strings, str) else tuple(strings)
