"""The picture of a comparison."""

import pytest
from hand_records import HAND, NO_ROUNDS, all_fuzzy

from eagle_fsd.evaluation.bench_plot import plot_speed_against_regret
from eagle_fsd.evaluation.metrics import summarize


@pytest.mark.parametrize(
    "records",
    [HAND, all_fuzzy(), {"plain": HAND["plain"]}, {"plain": NO_ROUNDS, "exact": NO_ROUNDS}]
    + [{arm: HAND[arm] for arm in ("plain", "fsd_js_T0.2")}]
    + [{arm: rows[:1] for arm, rows in HAND.items()}],
    ids=["hand", "ceiling without bound", "plain", "no rounds", "no exact", "one question"],
)
def test_the_picture_is_drawn(tmp_path, records):
    """Whatever arms there are beside plain, also without any round, ceiling or interval."""
    path = tmp_path / "summary.png"
    plot_speed_against_regret(summarize(records), path, title="T = $0.2, 50 %_")
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
