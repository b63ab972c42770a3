"""In what order the answers of a pass are made: interleaved, so that all arms share the weather."""

from collections.abc import Callable

from eagle_fsd.evaluation.arms import Arm
from eagle_fsd.speed.speed_folder import SpeedFolder

Job = tuple[str, str, int | str]  # file, arm, question_id


def jobs(
    folder: SpeedFolder,
    arms: list[Arm],
    keys: list[int | str],
    file_of: Callable[[str], str],
    *,
    first: int = 0,
) -> list[Job]:
    """What of a pass is still to be done: prompt by prompt, the arms rotated.

    Example, arms a b c and prompts 1 2:  1a 1b 1c 2b 2c 2a, and with first=1: 1b 1c 1a 2c 2a 2b.

    Args:
        keys: the prompts' question_ids.
        file_of: from an arm's name to the file of its rows.
        first: which arm begins; of every repeat another.
    """
    found = []
    for number, key in enumerate(keys, start=first):
        at = number % len(arms)
        for arm in arms[at:] + arms[:at]:
            file = file_of(arm.name)
            if key not in folder.rows(file):
                found.append((file, arm.name, key))
    return found


def record_file(repeat: int) -> Callable[[str], str]:
    """The files of the timed pass; repeats count from 1."""
    return lambda arm: f"records/repeat_{repeat}/{arm}"


def profile_file(arm: str) -> str:
    return f"profile/{arm}"


def context_key(length: int) -> str:
    """The question_id of a prompt that is made to have this length."""
    return f"context {length}"
