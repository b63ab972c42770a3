"""The texts of the prefixes of an answer, in a time that grows with its length alone, as streaming
needs them. No prefix is decoded whole: a window of its last tokens is."""

from collections.abc import Iterator, Sequence
from functools import partial
from os.path import commonprefix

from transformers import PreTrainedTokenizerBase

CONTEXT = 8  # tokens in front of what a window adds, which its own beginning may change
WINDOW = 24  # tokens, at which a window moves on if it can


def settled(tokenizer: PreTrainedTokenizerBase, text: str, token_ids: Sequence[int]) -> str:
    """As much of the text of tokens as no later token changes, see Model.settled."""
    broken = tokenizer.convert_tokens_to_ids("<0xFF>")  # a byte that is in no character
    if broken is None or tokenizer.convert_ids_to_tokens(broken) != "<0xFF>":
        return text
    longer = [*token_ids, broken]
    return commonprefix([text, tokenizer.decode(longer, skip_special_tokens=True)])


def prefix_texts(
    tokenizer: PreTrainedTokenizerBase,
    token_ids: list[int],
    *,
    first: int = 0,
    skip_special_tokens: bool = False,
) -> Iterator[str]:
    """decode(token_ids[:count]) of the counts from `first` + 1 on.

        token_ids  [ ........ known ........ | context | added ]
                                             `----- window ----'
    What a window adds is its text without its context's, which stands in `known` too. A window may
    move on where no later token changes the text so far: not within a character, nor where spaces
    might still be tidied up, nor in a run of bytes that a tokenizer with <0xFF> decodes as one.
    Elsewhere it grows.
    """
    decode = partial(tokenizer.decode, skip_special_tokens=skip_special_tokens)
    begin, known, context = 0, "", ""
    for count in range(first, len(token_ids) + 1):
        window = decode(token_ids[begin:count])
        text = known + window[len(context) :]
        if count > first:
            yield text
        if count - begin < WINDOW:
            continue
        tail_ids = token_ids[count - CONTEXT : count]
        tail = decode(tail_ids)
        # Not empty, since a text's first token loses its space with some tokenizers
        if tail and _is_final(tokenizer, tail, tail_ids):
            begin, known, context = count - CONTEXT, text, tail


def _is_final(tokenizer: PreTrainedTokenizerBase, text: str, token_ids: list[int]) -> bool:
    """No later token changes the text of these."""
    if text.endswith("\N{REPLACEMENT CHARACTER}"):  # of a character that is not whole
        return False
    # " ." and " n't" lose their space, which is at most three characters before their end
    if tokenizer.clean_up_tokenization_spaces and not text[-4:].isalnum():
        return False
    return settled(tokenizer, text, token_ids) == text
