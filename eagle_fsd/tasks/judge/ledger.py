"""The files of one judge in one mode, below RUN/model_judgment. Rows are only ever appended.

JUDGE_single.jsonl             verdicts, in FastChat's row format (and JUDGE_pair.jsonl)
JUDGE_single.unparsed.jsonl    the same rows for replies without a verdict, as FastChat marks them
JUDGE_single.replies.jsonl     every reply, with its tokens: what is paid for is kept
JUDGE_single.json, .md         how they were made, and the figures

A reply is written before the row it belongs to, which a pair has two of; a kill in between loses
neither. JUDGE is the judge's name with "/" and the like percent-encoded.
"""

import fcntl
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from eagle_fsd.runs.jsonl import append_line, read_lines
from eagle_fsd.tasks.judge.endpoint import Reply
from eagle_fsd.tasks.judge.judge_prompts import PARSERS, Messages
from eagle_fsd.tasks.judge.matches import Key, Match, judgment_folder

KINDS = {"single": "single", "pairwise": "pair"}  # FastChat's file names
# of a pair's two games: what A and B stand for
SIDES = ({"A": "model_1", "B": "model_2"}, {"A": "model_2", "B": "model_1"})

Game = tuple[Match, int]  # a match and which of its requests


class Ledger:
    """Reads what has been judged, repairing torn last lines, and adds replies.

    Attributes:
        verdicts: match key -> row.
        unparsed: match key -> row, of matches without a verdict so far.
        session: number of the launch that adds replies.
        usage: session -> (replies, prompt tokens, reply tokens).

    Raises:
        ValueError: the folder cannot be written to, or a file is damaged.
    """

    def __init__(self, run_folder: Path, judge: str, mode: str):
        if not judge:
            raise ValueError("--model is empty: name the judge as its endpoint does")
        self.judge, self.mode = judge, mode
        self._stem = judgment_folder(run_folder) / f"{quote(judge, safe='')}_{KINDS[mode]}"
        try:
            self._stem.parent.mkdir(parents=True, exist_ok=True)
            self.file(".replies.jsonl").touch()
        except OSError as error:
            raise ValueError(f"cannot write to {self._stem.parent} ({error})") from error

    def file(self, ending: str) -> Path:
        """One of the files: ".jsonl", ".unparsed.jsonl", ".replies.jsonl", ".json" or ".md"."""
        return self._stem.with_name(self._stem.name + ending)

    @contextmanager
    def opened(self) -> Iterator["Ledger"]:
        """Read all files; no other process may judge in the meantime.

        Raises:
            ValueError: another process does.
        """
        with self.file(".replies.jsonl").open("rb") as lock:  # a kill releases it too
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another process is judging into {self._stem}*: wait for its end"
                ) from None
            self.verdicts = {row_key(row): row for row in self._rows(".jsonl")}
            unparsed = {row_key(row): row for row in self._rows(".unparsed.jsonl")}
            self.unparsed = {k: row for k, row in unparsed.items() if k not in self.verdicts}
            # of a match and request, by digest of the messages
            self._replies: dict[tuple[Key, int], dict[str, dict]] = {}
            self.session = 0
            self.usage: dict[int, tuple[int, int, int]] = {}
            for row in self._rows(".replies.jsonl"):
                self._count(row)
            yield self

    def open_games(self, matches: Iterable[Match], *, retry_unparsed: bool) -> list[Game]:
        """The requests that are still to be made; also writes rows whose replies are all there.

        Raises:
            ValueError: a row was made with other messages than the match's.
        """
        games = []
        for match in matches:
            known = self.verdicts.get(match.key)
            if known is None and retry_unparsed:
                self._forget_unparsed(match)
            elif known is None:
                known = self.unparsed.get(match.key)
            if known is None:
                numbers = range(len(match.texts))
                missing = [number for number in numbers if not self._reply(match, number)]
                games += [(match, number) for number in missing]
                if not missing:
                    self._settle(match)
            elif not self._is_of(known, match):
                raise ValueError(
                    f"{self.file('.jsonl')} judges other answers or prompts than those there are "
                    f"now (question {match.question_id}, {match.arm}, turn {match.turn}): move "
                    f"{self._stem.name}* away to judge these"
                )
        return games

    def add(self, game: Game, reply: Reply) -> bool:
        """Write a reply, and the match's row once it has all of them; was that now?"""
        match, number = game
        question_id, choice, arm, baseline, turn = match.key
        row = {
            "question_id": question_id,
            "choice": choice,
            "arm": arm,
            "baseline": baseline,
            "turn": turn,
            "game": number,
            "prompt": digest(match.messages(number)),
            **asdict(reply),
            "session": self.session,
            "tstamp": time.time(),
        }
        append_line(self.file(".replies.jsonl"), row)
        self._count(row)
        complete = all(self._reply(match, i) for i in range(len(match.texts)))
        if complete:
            self._settle(match)
        return complete

    def _rows(self, ending: str) -> list[dict]:
        path = self.file(ending)
        return read_lines(path, repair=True) if path.is_file() else []

    def _count(self, reply: dict) -> None:
        key = tuple(reply[name] for name in ("question_id", "choice", "arm", "baseline", "turn"))
        self._replies.setdefault((key, reply["game"]), {})[reply["prompt"]] = reply
        added = 1, reply["prompt_tokens"], reply["completion_tokens"]
        before = self.usage.get(reply["session"], (0, 0, 0))
        self.usage[reply["session"]] = tuple(map(sum, zip(before, added, strict=True)))

    def _reply(self, match: Match, game: int) -> dict | None:
        return self._replies.get((match.key, game), {}).get(digest(match.messages(game)))

    def _is_of(self, row: dict, match: Match) -> bool:
        """Whether a row was made with the match's messages. A row holds the user's alone, its
        replies tell of the system prompt; FastChat's own rows have none."""
        return row_texts(row) == match.texts and all(
            self._reply(match, game)
            for game in range(len(match.texts))
            if (match.key, game) in self._replies
        )

    def _forget_unparsed(self, match: Match) -> None:
        """Replies without a verdict count as not given."""
        for game in range(len(match.texts)):
            reply = self._reply(match, game)
            if reply and PARSERS[self.mode](reply["text"]) is None:
                del self._replies[match.key, game][reply["prompt"]]

    def _settle(self, match: Match) -> None:
        replies = [self._reply(match, game) for game in range(len(match.texts))]
        verdicts = [PARSERS[self.mode](reply["text"]) for reply in replies]
        row = self._row(match, replies, verdicts)
        if None in verdicts:
            errors = [reply["error"] for reply in replies if reply["error"]]
            append_line(self.file(".unparsed.jsonl"), row | {"errors": errors})
            self.unparsed[match.key] = row
        else:
            append_line(self.file(".jsonl"), row)
            self.verdicts[match.key] = row
            self.unparsed.pop(match.key, None)

    def _row(self, match: Match, replies: list[dict], verdicts: list) -> dict:
        """As FastChat's play_a_match_single and play_a_match_pair write it, and the choice."""
        judge = [self.judge, match.prompt.name]
        last = {"turn": match.turn, "tstamp": time.time(), "choice": match.choice}
        if match.baseline is None:
            return {
                "question_id": match.question_id,
                "model": match.arm,
                "judge": judge,
                "user_prompt": match.texts[0],
                "judgment": replies[0]["text"],
                "score": -1 if verdicts[0] is None else verdicts[0],
                **last,
            }
        winners = [
            "error" if verdict is None else side.get(verdict, verdict)
            for verdict, side in zip(verdicts, SIDES, strict=True)
        ]
        return {
            "question_id": match.question_id,
            "model_1": match.arm,
            "model_2": match.baseline,
            "g1_winner": winners[0],
            "g2_winner": winners[1],
            "judge": judge,
            "g1_user_prompt": match.texts[0],
            "g1_judgment": replies[0]["text"],
            "g2_user_prompt": match.texts[1],
            "g2_judgment": replies[1]["text"],
            **last,
        }


def row_key(row: dict) -> Key:
    """Match.key of a row of FastChat's; its own rows have no choice."""
    arm, baseline = row.get("model", row.get("model_1")), row.get("model_2")
    return row["question_id"], row.get("choice", 0), arm, baseline, row["turn"]


def row_texts(row: dict) -> tuple[str, ...]:
    """Match.texts of a row."""
    if "user_prompt" in row:
        return (row["user_prompt"],)
    return row["g1_user_prompt"], row["g2_user_prompt"]


def digest(messages: Messages) -> str:
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()[:16]
