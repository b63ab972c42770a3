"""The options of a run, kept beside its output: a run with others is not continued."""

import json
from pathlib import Path

from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import write_json


def check_same_options(path: Path, mine: dict, *, free: tuple[str, ...], begun: bool) -> None:
    """Refuse options that differ from those of the runs before, and write them down.

    Args:
        path: of the options.
        free: options that may change between the runs that make one output.
        begun: whether there is anything to go on from; without, whatever is kept is replaced.

    Raises:
        BadInput: names the options that differ, or the output cannot be written to.
    """
    try:
        if begun and path.is_file():
            theirs = json.loads(path.read_text())
            changed = {
                key: (theirs.get(key), value)
                for key, value in mine.items()
                if key not in free and theirs.get(key) != value
            }
            if changed:
                raise BadInput(
                    f"{path} is of a run with other options (there, here): {changed}; name "
                    "another --output or delete it"
                )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, mine)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path} is damaged ({error}): name another --output") from error
    except OSError as error:
        raise BadInput(f"cannot write to --output {path.parent} ({error})") from error
