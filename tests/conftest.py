"""A tiny model and commands in this process. No test reaches for a model hub, nor chooses
threads by what else is at work: that is set before huggingface_hub and torch are imported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # as scripts/test.sh, where a process a core tests


import pytest  # noqa: E402


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of a tiny random target and a head for it."""
    from tiny_folder import write_random_head, write_target

    folder = tmp_path_factory.mktemp("models")
    return write_target(folder / "target", layers=2), write_random_head(folder / "head")


@pytest.fixture(scope="session")
def target(tmp_path_factory):
    """The folder of a tiny random target."""
    from tiny_folder import write_target

    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A file of dialogues for train_head.py."""
    from training_runs import write_data

    return write_data(tmp_path_factory.mktemp("data") / "data.jsonl.gz")


@pytest.fixture
def call(capsys):
    """Runs a command in this process, such as call("evaluate/mt_bench.py", *options), and
    gives all that it printed; where it ended with an error, that.
    What it tells to type is checked."""
    from commands import check_shown, run_main

    def run(command: str, *options: object) -> str:
        words = [*map(str, options)]
        capsys.readouterr()
        try:
            run_main(command, *words)
            told = "".join(capsys.readouterr())
        except SystemExit as exit:
            told = str(exit.code)
        check_shown(command, words, told)
        return told

    return run


@pytest.fixture
def server():
    """A judge's, see judge_server.py."""
    from judge_server import serving

    with serving() as server:
        yield server
