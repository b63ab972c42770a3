"""How many dialogues may still begin."""

from dataclasses import dataclass

from eagle_fsd.training.journal import Journal


@dataclass(frozen=True)
class DataBudget:
    """Limits of one process's share of a run; 0 is none.

    Attributes:
        dialogues: kept dialogues.
        answer_tokens: of kept dialogues; what is under way counts with the average so far.
        minutes: of all the commands that made the output; what is under way may end later.
        max_new_tokens: of an answer, for a guess at its length before there is an average.
    """

    dialogues: int
    answer_tokens: float
    minutes: float
    max_new_tokens: int

    def share(self, process: int, processes: int) -> "DataBudget":
        """What one of several processes has to do."""
        return DataBudget(
            self.dialogues // processes + (process < self.dialogues % processes),
            self.answer_tokens / processes,
            self.minutes,
            self.max_new_tokens,
        )

    def allows(self, journal: Journal, under_way: int, seconds: float) -> bool:
        """Whether one more dialogue may begin beside those under way."""
        if self.dialogues and journal.dialogues + under_way >= self.dialogues:
            return False
        if self.answer_tokens:
            expected = 0.6 * self.max_new_tokens
            if journal.dialogues >= 20:
                expected = journal.answer_tokens / journal.dialogues
            if journal.answer_tokens + under_way * expected >= self.answer_tokens:
                return False
        return not self.minutes or seconds < self.minutes * 60

    def expected_tokens(self, journal: Journal, seconds: float) -> int | None:
        """Answer tokens at the end, by what is known now: the nearest of the limits."""
        ends = [self.answer_tokens] if self.answer_tokens else []
        if self.dialogues and journal.dialogues:
            ends.append(journal.answer_tokens / journal.dialogues * self.dialogues)
        if self.minutes and seconds:
            ends.append(journal.answer_tokens / seconds * self.minutes * 60)
        return round(min(ends)) if ends else None
