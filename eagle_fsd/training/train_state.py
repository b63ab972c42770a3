"""The state of a training run on disk: its options, and the last complete save."""

import json
import shutil
from pathlib import Path

from accelerate import Accelerator

from eagle_fsd.config import BadInput
from eagle_fsd.runs.jsonl import read_lines, write_json, write_lines

FREE = ("save_minutes", "replayed", "validate_depth", "track")  # they change nothing of the head


def check_same_run(output: Path, mine: dict) -> None:
    """Options are kept beside the state, and a run with others is not continued.

    A run that ended before it saved anything leaves nothing to continue, whatever its options.
    """
    path = output / "options.json"
    kept = any((output / name).exists() for name in ("state", "state.old", "model.safetensors"))
    if kept and path.is_file():
        theirs = json.loads(path.read_text())
        changed = {k: (theirs.get(k), mine[k]) for k in mine if theirs.get(k) != mine[k]}
        changed = {k: values for k, values in changed.items() if k not in FREE}
        if changed:
            raise BadInput(
                f"{output} holds a run with other options (there, here): {changed}; "
                "name another --output or delete it"
            )
    try:
        output.mkdir(parents=True, exist_ok=True)
        write_json(path, mine)
    except OSError as error:
        raise BadInput(f"cannot write to --output {output} ({error})") from error


def save_state(accelerator: Accelerator, output: Path, progress: dict) -> None:
    """Save in a folder of its own, then swap: a kill leaves the old state or the new one."""
    new, old = output / "state.new", output / "state"
    accelerator.save_state(str(new))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (new / "progress.json").write_text(json.dumps(progress))
        if old.exists():  # else state.old, from a kill in here, is the last complete one
            shutil.rmtree(output / "state.old", ignore_errors=True)
            old.rename(output / "state.old")
        new.rename(old)
        shutil.rmtree(output / "state.old", ignore_errors=True)
    accelerator.wait_for_everyone()


def is_saved(output: Path) -> bool:
    """Whether there is a state to go on from."""
    return any((output / name / "progress.json").is_file() for name in ("state", "state.old"))


def resume(accelerator: Accelerator, output: Path) -> dict:
    """The last complete state, or a fresh start; what was logged after it is forgotten."""
    log = output / "log.jsonl"
    for name in ("state", "state.old"):  # killed between the two renames, only the old is there
        path = output / name / "progress.json"
        if path.is_file():
            accelerator.load_state(str(path.parent))
            progress = json.loads(path.read_text())
            if accelerator.is_main_process and log.is_file():
                rows = read_lines(log, repair=True)
                write_lines(log, [row for row in rows if row["step"] <= progress["step"]])
            return progress
    if accelerator.is_main_process:
        log.unlink(missing_ok=True)
    return {"step": 0, "seconds": 0.0, "tokens": 0}
