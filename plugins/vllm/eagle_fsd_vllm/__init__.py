"""The acceptance rules of eagle_fsd inside vLLM's Model Runner V2.

processor.py   the logits processor: the layout of each step of a batch, and what is forced in it
chains.py      which drafts are taken
admission.py   a request's arm, and what is refused when the request comes in
head.py        the model class of heads of EAGLE-1/2 with a bias in fc, or a draft vocabulary

Their arithmetic is eagle_fsd's, of which this package imports what needs no transformers.
"""

import os

TESTED = ("0.32", "0.33")  # of vLLM: what is touched of its internals was read in these
ANY_VERSION = "EAGLE_FSD_ANY_VLLM"
HEAD_CLASS = "EagleFsdLlamaForCausalLM"  # as `architectures` in a head's config.json


def register() -> None:
    """vLLM's entry point, called once in each of its processes."""
    from vllm import ModelRegistry

    ModelRegistry.register_model(HEAD_CLASS, f"eagle_fsd_vllm.head:{HEAD_CLASS}")


def check_version() -> None:
    """Refuse a vLLM that this was not tested with."""
    from vllm import __version__

    if ".".join(__version__.split(".")[:2]) not in TESTED and os.environ.get(ANY_VERSION) != "1":
        raise RuntimeError(
            f"eagle_fsd_vllm was tested with vLLM {' and '.join(TESTED)}, and this is {__version__}"
            f": install one of those, or set {ANY_VERSION}=1 to try it, after plugins/vllm/tests"
            " has passed with it"
        )
