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

import sys
from pathlib import Path


def main() -> None:
    # this folder's commands must not stand for packages that lm-eval imports
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    from eagle_fsd.runs.command import ended_by

    ended_by(evaluate)


def evaluate() -> None:
    """lm-eval's command with the model eagle_fsd beside its own."""
    from eagle_fsd.runs.command import step_of_setup

    with step_of_setup("tasks"):
        import lm_eval.models  # noqa: F401  (names lm-eval's own models)
        from lm_eval.__main__ import cli_evaluate
        from lm_eval.api.registry import model_registry

    # by name: `--help` and a typo are answered before torch is imported
    model_registry.register("eagle_fsd", target="eagle_fsd.tasks.harness_model:FuzzyLM")
    cli_evaluate()


if __name__ == "__main__":
    main()
