"""lm-evaluation-harness (lm-eval 0.4.13) on a target with its drafts: its own command line, plus a
model, which is lm-eval's "hf" whose `generate` decodes by an arm (docs/evaluate.md).

    pip install lm_eval==0.4.13
    python extras/lm_eval_model.py --model eagle_fsd --model_args arm=fsd:0.35 \
        --tasks gsm8k --apply_chat_template --output_path runs/gsm8k --log_samples

--model_args are the arguments of FuzzyLM and those of "hf" that change no weights (HF_ARGUMENTS),
others are further fields of the arm, since lm-eval splits its arguments at commas
(arm=fsd:0.3,child=target; arm=plain needs no head); all else is
lm-eval's, its answer cache --use_cache too, which does not know arms: name a file for each. Tokens
a round and the fuzzy share stand in the results file under config.eagle_fsd.
"""

import inspect

import torch
from lm_eval._cli import HarnessCLI
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import setup_logging

from eagle_fsd.arms import parse_arm
from eagle_fsd.cli import ended_by
from eagle_fsd.config import DEFAULT_ARM, BadInput, check_known
from eagle_fsd.decoding.answer import Generation
from eagle_fsd.models.assets import EMBEDDED_TARGET
from eagle_fsd.models.load import DTYPES, load_target_config, source_of
from eagle_fsd.plugin import load_plugin
from eagle_fsd.transformers_generate import custom_generate

HF_ARGUMENTS = ("think_end_token", "enable_thinking", "chat_template_args", "add_bos_token")
HF_ARGUMENTS += ("prefix_token_id", "max_length", "truncation", "softmax_dtype", "logits_cache")


@register_model("eagle_fsd")
class FuzzyLM(HFLM):
    """An arm on a target, one request at a time; log-likelihoods are those of "hf"."""

    def __init__(
        self,
        target: str = EMBEDDED_TARGET,
        *,
        head: str = "",
        arm: str = DEFAULT_ARM,
        tree: str = "",
        dtype: str = "auto",
        plugin: str = "",
        device: str = "cuda",
        batch_size: int | str | None = 1,
        max_batch_size: int | None = None,  # this and the next are lm-eval's, and have no use here
        trust_remote_code: bool = False,
        **further: object,
    ):
        if plugin:
            load_plugin(plugin)
        theirs = {name: further.pop(name) for name in HF_ARGUMENTS if name in further}
        if others := further.keys() & inspect.signature(HFLM.__init__).parameters.keys():
            raise BadInput(
                f"--model_args {min(others)} is lm-eval's for loading a model, which is loaded "
                f"here by target, head and dtype; of lm-eval's are taken {', '.join(HF_ARGUMENTS)}"
            )
        arm = ",".join([str(arm), *(f"{name}={value}" for name, value in further.items())])
        self._arm = parse_arm(arm).text
        self._method = custom_generate(head, arm=arm, tree=tree or None)
        check_known("dtype", str(dtype), ("auto", *DTYPES))
        load_target_config(target)
        path, options = source_of(target)
        options |= theirs
        super().__init__(path, device=device, dtype=dtype, batch_size=batch_size, **options)
        self._all, self._answers = Generation(), 0  # the rounds of all answers, and their number

    def _model_generate(self, context: torch.Tensor, **settings: object) -> torch.Tensor:
        generated = super()._model_generate(context, custom_generate=self._method, **settings)
        self._answers += 1
        self._all.rounds += self._method.last.rounds
        return generated

    def get_model_info(self) -> dict[str, object]:
        """What lm-eval adds to `config` of its results file."""
        told = {"arm": self._arm, "answers": self._answers}
        if self._all.rounds:  # none where answers are only scored
            told |= {name: getattr(self._all, name) for name in ("tokens_per_round", "fuzzy_share")}
            print(
                f"{self._arm}: {self._answers} answers, {self._all.tokens_per_round:.2f} tokens a "
                f"round, fuzzy share {self._all.fuzzy_share:.4f}"
            )
        return super().get_model_info() | {"eagle_fsd": told}


def main() -> None:
    setup_logging()
    command_line = HarnessCLI()
    command_line.execute(command_line.parse_args())


if __name__ == "__main__":
    ended_by(main)
