"""Damaged files of every kind of folder: refused, told, or of no account."""

import pytest
from damage import KINDS, damage

# Another question, or another score of one: a question's id may be a text
ALLOWED = ("field question_id", "field scores.contains")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_traceback_and_no_silence(kind):
    """Regression: of 850 damages 84 were tracebacks, and 63 silent."""
    found = [row for row in damage([kind]) if row[3] in ("traceback", "silent")]
    assert not [row for row in found if row[3] == "traceback" or row[2] not in ALLOWED]
