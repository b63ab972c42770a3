"""What a measurement depends on, as the readable keys of stored files.

Costs depend on machine, threads, torch, code and the shapes of target and head; acceptance on the
weights, the prompts and the rule, and not on the machine.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from eagle_fsd.api import Model
from eagle_fsd.config import AcceptConfig, SamplingConfig, TreeConfig
from eagle_fsd.runs.provenance import describe_device, weights_digest
from eagle_fsd.speed.tree_choice.calibration import TuningConfig
from eagle_fsd.speed.tree_choice.store import digest

PACKAGE = Path(__file__).parent.parent.parent
# of the library; what a measured round runs
DECODING = ("config.py", "decoding", "drafters", "engine", "heads", "rules")


def cost_key(model: Model, tuning: TuningConfig) -> dict:
    """Of Costs. A change of the decoding code measures anew."""
    target, head = model.target, model.drafter.head
    drafted = model.drafter.draft_vocab_size
    return {
        "machine": describe_device(str(target.device)),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "engine": target.engine.name,
        "dtype": str(target.dtype),
        "target": _target_shape(model),
        "head": {"config": _digest_of(asdict(head.config)), "draft_vocabulary": drafted},
        "repeats": tuning.repeats,
        "context": tuning.context,
        "code": _code(),
    }


def rule_key(accept: AcceptConfig, sampling: SamplingConfig) -> dict:
    """The settings that a rule reads."""
    read = {"rule": "exact"} if accept.rule == "exact" else asdict(accept)
    return {"accept": {k: _number(v) for k, v in read.items()}, "sampling": asdict(sampling)}


def survey_key(
    model: Model,
    accept: AcceptConfig,
    sampling: SamplingConfig,
    trees: tuple[TreeConfig, ...],
    tuning: TuningConfig,
    visiting: TreeConfig,
) -> dict:
    """Of Survey."""
    target = model.target
    prompts = [model.prompt_ids(prompt) for prompt in tuning.prompts]
    stop = model.stop(tuning.max_new_tokens)
    return {
        **rule_key(accept, sampling),
        # packed layers have no parameters to take a digest of, so the place counts too
        "target": {
            **_target_shape(model),
            "weights": weights_digest(target.model),
            "place": _digest_of(target.model.config.name_or_path),
        },
        "head": model.drafter.fingerprint,
        "dtype": str(target.dtype),
        "prompts": _digest_of([prompts, stop.token_ids, stop.strings]),
        "max_new_tokens": tuning.max_new_tokens,
        "seed": tuning.seed,
        "trees": _digest_of([asdict(tree) for tree in trees]),
        "visiting": asdict(visiting),
        "code": _code(),
    }


def _code() -> str:
    """A digest of the source that decoding runs."""
    paths = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    used = sorted(path for path in paths if path.parts[0] in DECODING)
    return digest(*((PACKAGE / path).read_bytes() for path in used))


def _target_shape(model: Model) -> dict:
    """Its kind and size; the digest is of its config without the place that it was loaded from."""
    config = model.target.model.config.to_dict()
    config.pop("_name_or_path", None)
    return {
        "type": config["model_type"],
        "layers": model.target.num_layers,
        "hidden_size": model.target.hidden_size,
        "vocab_size": model.target.vocab_size,
        "config": _digest_of(config),
    }


def _digest_of(value: object) -> str:
    return digest(json.dumps(value, sort_keys=True, default=str).encode())


def _number(value: object) -> object:
    """JSON has no infinity."""
    return str(value) if value == float("inf") else value
