"""The model "eagle_fsd" of lm-evaluation-harness (lm-eval 0.4.13).

It is lm-eval's own model "hf", whose `generate` decodes by an arm (docs/transformers.md).
Log-likelihoods, which no arm changes, are those of "hf".
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
    """An arm on a target as lm-eval's model, which answers one request at a time.

    Args, the fields of --model_args:
        target, head, arm, tree, plugin: as for the project's commands.
        dtype: lm-eval's; "auto" is that of the checkpoint.
        further: fields of the arm, since lm-eval splits its arguments at commas:
            arm=fsd:0.3,child=target.

    Raises:
        BadInput: an arm, a target or a dtype that cannot be had, before weights load; in
            `generate`, a batch.
    """

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
        max_batch_size: int | None = None,
        trust_remote_code: bool = False,
        **further: object,
    ):
        if plugin:
            load_plugin(plugin)
        text = ",".join([str(arm), *(f"{name}={value}" for name, value in further.items())])
        self._arm = parse_arm(text).text
        self._method = custom_generate(head, arm=text, tree=tree or None)
        check_known("dtype", str(dtype), ("auto", *DTYPES))
        load_target_config(target)
        path, options = source_of(target)
        # trust_remote_code is for data sets: targets never run code of theirs
        super().__init__(path, device=device, dtype=dtype, batch_size=batch_size, **options)
        self._all = Generation()  # the rounds of all answers
        self._answers = 0

    def _model_generate(self, context: torch.Tensor, **settings: object) -> torch.Tensor:
        generated = super()._model_generate(context, custom_generate=self._method, **settings)
        self._answers += 1
        self._all.rounds += self._method.last.rounds
        return generated

    def get_model_info(self) -> dict[str, object]:
        """What lm-eval adds to `config` of its results file, of the first process's answers."""
        told = {"arm": self._arm, "answers": self._answers}
        if self._all.rounds:  # none where answers are only scored
            tokens_per_round, fuzzy_share = self._all.tokens_per_round, self._all.fuzzy_share
            told |= {"tokens_per_round": tokens_per_round, "fuzzy_share": fuzzy_share}
            print(
                f"{self._arm}: {self._answers} answers, {tokens_per_round:.2f} tokens a round, "
                f"fuzzy share {fuzzy_share:.4f}"
            )
        return super().get_model_info() | {"eagle_fsd": told}
