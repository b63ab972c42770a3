"""scripts/families.sh: what it finds out about families, and the tables that it writes."""

import json
import subprocess
import sys

import pytest
from commands import ROOT, load_command

TABLES = load_command("extras/families_tables.py")


@pytest.mark.processes
def test_families_are_tried_each_in_its_process(tmp_path):
    """One is exact, one is refused by trial and one by its config."""
    command = [sys.executable, ROOT / "extras/families.py", "--quick", "--output"]
    command += [tmp_path / "out", "--families", "llama", "moshi", "jamba"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "llama: exact on every engine\n" in printed
    assert (
        "moshi: refused targets of type 'moshi' are not supported: their masks lack the" in printed
    )
    assert "jamba: refused target of type 'jamba' has layers of type" in printed
    llama = json.loads((tmp_path / "out/llama.json").read_text())
    assert [engine["decodes"] for engine in llama["engines"].values()] == [5, 5, 5]
    assert llama["bfloat16"] == "taken" and not llama["notes"]


def record(family: str, *outcomes: tuple[str, str], not_built: str = "") -> dict:
    engines = zip(("stock", "folded", "packed"), outcomes, strict=False)
    return {
        "family": family,
        "engines": {e: {"outcome": o, "reason": why, "decodes": 3} for e, (o, why) in engines},
        "not_built": not_built,
        "bfloat16": "",
        "notes": [],
        "seconds": 1.0,
    }


REFUSAL = "targets of type '{}' are not supported: the tree differs (relative error 0.1). Tested: x"
RECORDS = {
    TABLES.EXACT: record("a", *[("exact", "")] * 3),
    TABLES.SOME: record("b", ("exact", ""), ("exact", ""), ("refused", "no")),
    TABLES.REFUSED: record("c", *[("refused", REFUSAL.format("c"))] * 3),
    TABLES.NOT_BUILT: record("d", not_built="ValueError: no"),
    TABLES.FAILED: record("e", ("exact", ""), ("refused", "no"), ("failed", "IndexError: 0")),
    TABLES.WRONG: record("f", ("exact", ""), ("wrong", "token 3"), ("failed", "IndexError: 0")),
}


@pytest.mark.parametrize("name", TABLES.OUTCOMES)
def test_the_worst_engine_decides_a_family_s_outcome(name):
    assert TABLES.outcome(RECORDS[name])[0] == name


def test_the_page_has_every_family_and_counts_those_of_one_reason_together():
    other = record("g", *[("refused", REFUSAL.format("g").replace("0.1", "2"))] * 3)
    page = TABLES.as_page(TABLES.as_rows([*RECORDS.values(), other]))
    assert "| refused | 2 |" in page and "| the tree differs | 2 | `c`, `g` |" in page
    assert all(f"`{family}`" in page for family in "abcdefg")
    assert "| packed: no | 1 | `b` |" in page
