"""extras/disturb.py, on records made by hand."""

from commands import load_command
from hand_records import made_run


def test_a_turn_of_many_times_its_time_is_named_and_moves_the_speed():
    records = made_run(8)
    before = str(records)
    rows = {factor: load_command("extras/disturb.py").disturb(records, factor) for factor in (1, 9)}
    assert str(records) == before
    assert rows[1]["named"].startswith("0 of ") and rows[1]["others named"] == "0"
    assert rows[1]["speed_vs_plain"] == "0.0% (most 0.0%)"
    named, _, count = rows[9]["named"].partition(" of ")
    assert named == count and rows[9]["others named"] == "0"
    assert float(rows[9]["speed_vs_plain"].partition("%")[0]) > 10
