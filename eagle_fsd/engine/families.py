"""Which model families can verify a draft tree: known ones, and a test for all others."""

import inspect

import torch
from transformers import PretrainedConfig

from eagle_fsd.config import BadInput
from eagle_fsd.decoding.target import Target
from eagle_fsd.decoding.text_model import logit_factor, rope_parts, text_config
from eagle_fsd.decoding.tree import DraftTree

# Families whose tree attention the tests check, sliding windows included where they have them.
TESTED_FAMILIES = ("gemma3_text", "llama", "mistral", "mixtral", "qwen2", "qwen3")
# Layers whose masks masks.layer_masks can make.
LAYER_TYPES = ("chunked_attention", "full_attention", "sliding_attention")
# Rotary positions that are the same at every length of the text; those of longrope change at one,
# and texts end there (text_model.longest_text). Those of dynamic change from token to token: cached
# keys are of a length before, and a tree may reach over it.
ROPES = ("default", "linear", "llama3", "longrope", "proportional", "yarn")


def check_supported(config: PretrainedConfig) -> None:
    """Refuse, by its config alone, a model whose verification could not be right; of a multimodal
    model its text model is meant.

    Raises:
        BadInput: names the model type and what is not supported.
    """
    if config.is_encoder_decoder:
        raise BadInput(
            f"target of type {config.model_type!r} is an encoder-decoder; a decoder is needed"
        )
    config = text_config(config)
    kind = config.model_type
    if unknown := set(getattr(config, "layer_types", None) or []) - set(LAYER_TYPES):
        raise BadInput(
            f"target of type {kind!r} has layers of type {sorted(unknown)}; a draft tree can be "
            f"verified with {', '.join(LAYER_TYPES)} layers only"
        )
    logit_factor(config)
    for part in rope_parts(config):
        name = part.get("rope_type", "default")
        if name not in ROPES:
            raise BadInput(
                f"target of type {kind!r} has rope_type {name!r}; a draft tree can be verified "
                f"with {', '.join(ROPES)}, which do not change with the length of the text"
            )
        texts = {key: value for key, value in part.items() if isinstance(value, str)}
        if texts.keys() - {"rope_type", "type"}:
            raise BadInput(f"the target's config has text for numbers in rope_parameters: {texts}")


@torch.inference_mode()
def check_tree_attention(target: Target) -> None:
    """Refuse a target that does not verify trees correctly.

    Of a family that is not tested, a small tree is compared with its paths, each run alone. The
    prompt is longer than the usual local windows, and the tree is wide, so that a model which goes
    by row instead of position is found out.

    Raises:
        BadInput: names the family.
    """
    check_supported(target.model.config)
    kind = target.model.config.model_type
    if kind in TESTED_FAMILIES:
        return
    if "position_ids" not in inspect.signature(target.model.base_model.forward).parameters:
        raise BadInput(
            f"targets of type {kind!r} are not supported: they take no position_ids, so the "
            f"nodes of a draft tree cannot be placed. Tested: {', '.join(TESTED_FAMILIES)}"
        )
    window = getattr(target.model.config, "window_size", None) or 0
    length = max(1, min(max(300, window + 40), target.max_positions - 6))
    prompt_L = (torch.arange(length, device=target.device) * 7 + 3) % min(target.vocab_size, 997)
    tokens = [(11 * node + 5) % min(target.vocab_size, 991) for node in range(27)]
    # 20 children of the root, then two chains of three below the first and the last of them
    tree = DraftTree.from_parents(tokens, [0] * 21 + [1, 21, 22, 20, 24, 25], device=target.device)
    try:
        target.start(length + tree.size)
        target.prefill(prompt_L)
        logits_NV = target.verify(tree)[0].float()
        errors = []
        for leaf in (10, 23, 26):
            path = torch.cat([prompt_L, tree.token_N[tree.ancestor_NN[leaf]]])
            alone_V = target.model(input_ids=path[None]).logits[0, -1].float()
            errors.append((logits_NV[leaf] - alone_V).norm() / (alone_V - alone_V.mean()).norm())
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise BadInput(
            f"targets of type {kind!r} are not supported: verifying a draft tree failed with "
            f"{type(error).__name__}: {error}"
        ) from error
    finally:
        target.close()
    worst = torch.stack(errors).max()
    if not worst < (1e-3 if target.dtype == torch.float32 else 0.05):
        raise BadInput(
            f"targets of type {kind!r} are not supported: a draft tree and the same tokens run "
            f"alone give different logits (relative error {worst:.2g}). Tested families: "
            f"{', '.join(TESTED_FAMILIES)}"
        )
