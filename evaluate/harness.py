"""lm-evaluation-harness (lm-eval) on a target with its drafts: its own command line, plus a model.

    python evaluate/harness.py --model eagle_fsd --model_args arm=fsd:0.35 \
        --tasks gsm8k --apply_chat_template --output_path runs/gsm8k --log_samples
    python evaluate/harness.py --model eagle_fsd --tasks mmlu commonsense_qa \
        --model_args target=meta-llama/Meta-Llama-3-8B-Instruct,arm=plain
    python evaluate/harness.py --model eagle_fsd --tasks mine --include_path folder
    HF_ALLOW_CODE_EVAL=1 python evaluate/harness.py --model eagle_fsd --tasks humaneval_instruct \
        --apply_chat_template --confirm_run_unsafe_code    # runs what the target wrote, unconfined
    accelerate launch --config_file scripts/accelerate/ddp.yaml evaluate/harness.py ...

--model_args are the fields of eagle_fsd.tasks.harness_model.HarnessOptions, others are further
fields of the arm (arm=plain needs no head); everything else is lm-eval's (`python
evaluate/harness.py run --help`). Multiple choice is rated by the target alone, so there no arm
changes the score. Rounds, fuzzy share, regret and TV of the generated answers are printed at the
end, by task, and stand in the results file under config.eagle_fsd. A killed run continues with
--use_cache PATH, which answers of other options are not mixed into; --cache_requests keeps the
built prompts.
"""

import logging
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lm_eval.config.evaluate_config import EvaluatorConfig

GO_ON = "make room there or name another place; with --use_cache answers are kept"


def main() -> None:
    # this folder's commands must not stand for packages that lm-eval imports
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    from eagle_fsd.cli import ended_by

    ended_by(evaluate)


def evaluate() -> None:
    """lm-eval's command with the model eagle_fsd beside its own, and its errors that are a user's
    in a line; of results that it could not write lm-eval 0.4.13 only warns."""
    from eagle_fsd.cli import step_of_setup
    from eagle_fsd.config import BadInput

    with step_of_setup("tasks"):
        import lm_eval.models  # noqa: F401  (names lm-eval's own models)
        from lm_eval._cli import HarnessCLI
        from lm_eval.api.registry import model_registry
        from lm_eval.config.evaluate_config import EvaluatorConfig
        from lm_eval.utils import setup_logging

    # by name: `--help` and a typo are answered before torch is imported
    model_registry.register("eagle_fsd", target="eagle_fsd.tasks.harness_model:FuzzyLM")
    setup_logging()
    command_line = HarnessCLI()
    try:
        given = command_line.parse_args()
        config = EvaluatorConfig.from_cli(given) if given.command == "run" else None
    except (OSError, TypeError, ValueError) as error:
        raise BadInput(f"{error}: see evaluate/harness.py run --help") from error
    if config:
        check(config)
    unsaved: list[str] = []

    def note(record: logging.LogRecord) -> bool:
        if record.msg.startswith("Could not save"):
            unsaved.append(f"{record.msg} ({sys.exception()})")
        return True

    logging.getLogger("lm_eval.loggers.evaluation_tracker").addFilter(note)
    try:
        command_line.execute(given)
    except sqlite3.Error as error:
        raise BadInput(f"cannot write to --use_cache ({error}): {GO_ON}") from error
    except ValueError as error:
        if not str(error).startswith("Tasks not found"):  # by their names alone
            raise
        raise BadInput(f"{error}: evaluate/harness.py ls tasks lists them") from error
    if unsaved:
        raise BadInput(f"{'; '.join(unsaved)}: {GO_ON}")


def check(config: "EvaluatorConfig") -> None:
    """What lm-eval would come to only when it has listed its tasks, or answered."""
    from eagle_fsd.config import BadInput

    if config.model == "eagle_fsd":
        from eagle_fsd.tasks.harness_model import HarnessOptions

        own = {"device": config.device, "batch_size": config.batch_size}
        if twice := ", ".join(own.keys() & config.model_args.keys()):
            raise BadInput(f"--model_args {twice}: lm-eval has an option for it, --{twice}")
        HarnessOptions.read(config.model_args | own)
    for option in ("output_path", "use_cache"):
        if place := getattr(config, option):
            folder = Path(place)
            if option == "use_cache" or folder.suffix == ".json":  # the beginning of file names
                folder = folder.parent
            try:
                folder.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=folder).close()
            except (OSError, ValueError) as error:
                raise BadInput(f"cannot write to --{option} {place} ({error}): {GO_ON}") from error


if __name__ == "__main__":
    main()
