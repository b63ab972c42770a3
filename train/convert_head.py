"""Convert a draft head from any layout to another, and say what was done.

    python train/convert_head.py --head yuhuili/EAGLE3-LLaMA3.1-Instruct-8B --output heads/llama3.1
    python train/convert_head.py --head runs/head --output runs/for_vllm --format speculators \
        --target smollm2

The layouts are described in eagle_fsd/layouts.py. Heads load here in any of them, unconverted.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import HfArgumentParser

from eagle_fsd.checkpoint import CONFIG_NAME, read_tensors, resolve_folder
from eagle_fsd.formats import StoredHead, read_stored_head, write_stored_head
from eagle_fsd.layouts import LAYOUTS
from eagle_fsd.loading import DTYPES, check_fits, load_target, load_target_config
from eagle_fsd.options import option


@dataclass
class ConvertOptions:
    head: str = field(metadata={"help": "folder or hub id of a head in any layout"})
    output: str = field(metadata={"help": "folder to write; must not hold a head yet"})
    format: str = option("eagle_fsd", f"layout to write: {', '.join(LAYOUTS)}")
    target: str = option("", "its embedding is stored beside the head, and its sizes are checked")
    dtype: str = option("", "bfloat16, float16 or float32; empty: as it is")

    def __post_init__(self):
        if self.format not in LAYOUTS:
            raise ValueError(f"unknown --format {self.format!r}: {', '.join(LAYOUTS)}")
        if self.dtype and self.dtype not in DTYPES:
            raise ValueError(f"unknown --dtype {self.dtype!r}: {', '.join(DTYPES)}")
        if (Path(self.output) / CONFIG_NAME).exists():
            raise ValueError(f"--output {self.output} holds a {CONFIG_NAME} already")


def convert(options: ConvertOptions) -> None:
    """Read, check, write and report.

    Raises:
        ValueError: the head is broken, does not fit the target, or has no place in the layout.
    """
    stored = read_stored_head(resolve_folder(options.head))
    config = stored.config
    embedding_VD, verifier, layers = None, ("", []), config.feature_layers
    if options.target:
        target_config = load_target_config(options.target)
        check_fits(config, target_config, name=options.head)
        verifier = (options.target, list(target_config.architectures or []))
        layers = config.fused_layers(target_config.num_hidden_layers)
        if options.format != "eagle_fsd":
            embedding_VD = read_embedding(options.target, like=stored.tensors["fc.weight"])
    notes = write_stored_head(
        options.output,
        config,
        stored.tensors,
        options.format,
        dtype=DTYPES[options.dtype] if options.dtype else None,
        embedding_VD=embedding_VD,
        verifier=verifier,
    )
    report(options, stored, notes, layers)


def read_embedding(target: str, *, like: torch.Tensor) -> torch.Tensor:
    """What the target's embedding gives for every token, [V, D], scaled where the model scales."""
    loaded, _ = load_target(target, dtype=str(like.dtype).removeprefix("torch."))
    return loaded.embed(torch.arange(loaded.vocab_size))


def report(
    options: ConvertOptions, stored: StoredHead, notes: Iterable[str], layers: tuple[int, ...]
) -> None:
    """Print what was read, done and written."""
    kind = "EAGLE-3" if stored.config.eagle3 else "EAGLE-1/2"
    print(f"read {options.head}: {kind} head in the layout of {stored.layout}")
    for note in (*stored.notes, *notes):
        print(f"  {note}")
    if stored.config.eagle3:
        said = f"{layers} of the target" if layers else "2, n // 2 and n - 3 of n (the usual ones)"
        print(f"  fuses hidden states {said}; number i is what enters layer i")
    before = dtype_names(stored.tensors.values())
    written = read_tensors(Path(options.output))
    after = dtype_names(written.values())
    changed = after if after == before else f"{before} became {after}"
    own = sum(t.numel() for t in stored.tensors.values() if t.is_floating_point())
    print(f"wrote {options.output}: layout of {options.format}, {own:,} parameters, {changed}")
    for key, tensor in written.items():
        print(f"  {key} {tuple(tensor.shape)}")


def dtype_names(tensors: Iterable[torch.Tensor]) -> str:
    """The floating-point types that occur."""
    names = {str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()}
    return ", ".join(sorted(names))


def main(arguments: list[str] | None = None) -> None:
    parser = HfArgumentParser(ConvertOptions)
    try:
        convert(*parser.parse_args_into_dataclasses(arguments))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
