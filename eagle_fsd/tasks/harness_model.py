"""The model "eagle_fsd" of lm-evaluation-harness (lm-eval 0.4.13).

It is lm-eval's own model "hf", whose `generate` decodes by an arm (docs/transformers.md), one
request at a time. Log-likelihoods, which no arm changes, are those of "hf".
"""

import torch
from lm_eval.models.huggingface import HFLM

from eagle_fsd.arms import parse_arm
from eagle_fsd.config import DEFAULT_ARM, check_known
from eagle_fsd.decoding.loop import Generation
from eagle_fsd.models.assets import EMBEDDED_TARGET
from eagle_fsd.models.load import DTYPES, load_target_config, source_of
from eagle_fsd.plugin import load_plugin
from eagle_fsd.transformers_generate import custom_generate


class FuzzyLM(HFLM):
    """An arm on a target. The arguments are the fields of --model_args; `further` are fields of the
    arm, since lm-eval splits its arguments at commas: arm=fsd:0.3,child=target."""

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
        arm = ",".join([str(arm), *(f"{name}={value}" for name, value in further.items())])
        self._arm = parse_arm(arm).text
        self._method = custom_generate(head, arm=arm, tree=tree or None)
        check_known("dtype", str(dtype), ("auto", *DTYPES))
        load_target_config(target)
        path, options = source_of(target)
        super().__init__(path, device=device, dtype=dtype, batch_size=batch_size, **options)
        self._all = Generation()  # the rounds of all answers
        self._answers = 0

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
