"""lm-evaluation-harness (lm-eval) on a target with its drafts: its own command line, plus a model.

    python evaluate/harness.py --model eagle_fsd --model_args arm=fsd:0.35 \
        --tasks gsm8k --apply_chat_template --output_path runs/gsm8k --log_samples
    python evaluate/harness.py --model eagle_fsd --tasks mine --include_path folder \
        --model_args target=meta-llama/Meta-Llama-3-8B-Instruct,arm=plain
    HF_ALLOW_CODE_EVAL=1 python evaluate/harness.py --model eagle_fsd --tasks humaneval_instruct \
        --apply_chat_template --confirm_run_unsafe_code    # runs what the target wrote, unconfined

--model_args are the arguments of eagle_fsd.tasks.harness_model.FuzzyLM, others are further fields
of the arm (arm=plain needs no head); everything else is lm-eval's (`python evaluate/harness.py run
--help`), its answer cache --use_cache too, which does not know arms: name a file for each. Tokens a
round and the fuzzy share are printed at the end and stand in the results file under
config.eagle_fsd.
"""

import sys
from pathlib import Path


def main() -> None:
    # this folder's commands must not stand for packages that lm-eval imports
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    from eagle_fsd.cli import ended_by

    ended_by(evaluate)


def evaluate() -> None:
    """lm-eval's command with the model eagle_fsd beside its own."""
    from eagle_fsd.config import step_of_setup

    with step_of_setup("tasks"):
        import lm_eval.models  # noqa: F401  (names lm-eval's own models)
        from lm_eval._cli import HarnessCLI
        from lm_eval.api.registry import model_registry
        from lm_eval.utils import setup_logging

    # by name: `--help` and a typo are answered before torch is imported
    model_registry.register("eagle_fsd", target="eagle_fsd.tasks.harness_model:FuzzyLM")
    setup_logging()
    command_line = HarnessCLI()
    command_line.execute(command_line.parse_args())


if __name__ == "__main__":
    main()
