"""What followed the same tokens before, how often, and so how likely it is to follow again.

    A B C D A B ?     A B went on with C once; where C is wrong, what B alone went on with is next

N-gram counts of the text so far, with back-off: the tri-gram matrix of adaptive draft-verification
(Adaptix, arXiv 2407.12021), started from the prompt. Beside them, where a drafter asks for it, the
target's own top tokens at verified nodes, accepted or not (Token Recycling, arXiv 2408.08696, of
one token's context; here of one and two). It lives on the host.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

MOST_TIMES, MOST_OTHERS = 4, 7  # counts above these count as these
CONTINUATIONS = 4  # kept of an n-gram
MAX_NGRAMS = 2**15
# After one and two tokens: how likely the first of the target's own top tokens is right where all
# that the text offers is wrong; the r-th is 1 / r of that. Fitted to 11,000 such places in 225 of
# the answers that `sureness` was fitted to.
RECYCLED = {1: 0.1, 2: 0.26}
MOST_RECYCLED = 16  # then these are right with .88
NOTHING = ((), ())


@lru_cache(1024)
def sureness(matched: int, times: int, others: int, missed: bool) -> float:
    """Probability that a continuation is right.

    A logistic regression over 166,000 continuations in 500 answers of SmolLM2-135M-Instruct to
    prompts that are in no benchmark, greedy and sampled: log loss .374 nats, where one number gives
    .678, the matched length and the count .428 and a table of all cases .366.

    Args:
        matched: tokens of the n-gram, 1 to 3 in the fit.
        times: how often the n-gram went on so.
        others: how often it went on with what was not offered yet.
        missed: something surer was offered before, and is wrong.
    """
    often = math.log2(min(times, MOST_TIMES))
    doubt = math.log2(1 + min(others, MOST_OTHERS))
    odds = 1.09 * matched + (0.48 + 0.4 * matched) * often - 0.56 * matched * doubt
    return 1 / (1 + math.exp(2.38 - odds + 0.96 * missed))


class NgramTable:
    """The continuations of every n-gram of a growing text, up to `max_ngram` tokens.

    Args:
        max_ngrams: most n-grams that are kept; those not seen for longest go first. One takes about
            400 bytes, 270 without the target's own tokens: 13 MB when 2**15 are full, which a text
            of 8,000 tokens fills, and at most 26 MB.
    """

    def __init__(self, max_ngram: int, max_ngrams: int = MAX_NGRAMS):
        self.max_ngram, self.max_ngrams = max_ngram, max_ngrams
        self.last: tuple[int, ...] = ()
        """The text's last max_ngram tokens, with which a path below its end is looked up."""
        # Of an n-gram: continuations with their counts, the more frequent first and of two alike
        # the later; and the target's own top tokens.
        self._known: dict[tuple[int, ...], tuple[tuple[tuple[int, int], ...], tuple[int, ...]]] = {}

    def __len__(self) -> int:
        """How many n-grams are known."""
        return len(self._known)

    def begin(self, first_token: int) -> None:
        """Another text; what is known stays."""
        self.last = (first_token,)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text. A token continues every n-gram that ended before it."""
        for token in tokens:
            for n in range(1, len(self.last) + 1):
                followed, recycled = self._known.pop(self.last[-n:], NOTHING)
                times = 1 + dict(followed).get(token, 0)
                others = [pair for pair in followed if pair[0] != token]
                more = sum(count > times for _, count in others)
                followed = (*others[:more], (token, times), *others[more:])[:CONTINUATIONS]
                self._keep(self.last[-n:], followed, recycled)
            self.last = self.follow(self.last, token)

    def learn(self, context: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        """Take in the target's own top tokens after a context, the likeliest first, in place of
        those after an earlier one with the same end."""
        for n in RECYCLED:
            if n <= len(context):
                followed, _ = self._known.pop(context[-n:], NOTHING)
                self._keep(context[-n:], followed, tokens)

    def _keep(self, ngram: tuple[int, ...], followed: tuple, recycled: tuple) -> None:
        self._known[ngram] = followed, recycled
        if len(self._known) > self.max_ngrams:
            del self._known[next(iter(self._known))]

    def follow(self, context: tuple[int, ...], token: int) -> tuple[int, ...]:
        """The last tokens once another has come."""
        return (*context, token)[-self.max_ngram :]

    def after(self, context: tuple[int, ...], most: int) -> dict[int, float]:
        """At most `most` next tokens with their probabilities, the likeliest first: what the
        longest n-gram at the context's end went on with, and of what that leaves to be right the
        same of the shorter ones. The target's own come behind the text's of the same n-gram."""
        offers: dict[int, float] = {}
        left = 1.0
        for n in range(len(context), 0, -1):
            followed, recycled = self._known.get(context[-n:], NOTHING)
            fresh = [pair for pair in followed if pair[0] not in offers]
            others = sum(times for _, times in fresh)
            for token, times in fresh:
                others -= times
                offers[token] = left * sureness(n, times, others, bool(offers))
                left -= offers[token]
            right = left * RECYCLED.get(n, 0)
            own = [token for token in recycled if token not in offers]
            for rank, token in enumerate(own, start=1):
                offers[token] = right / rank
                left -= offers[token]
        best = sorted(offers.items(), key=lambda offer: -offer[1])  # of two alike the first
        return dict(best[:most])
