"""Memory grows little with the number of rows and tokens."""

import pytest

from tests.memory import MEGA, rises

ROWS, NEW_TOKENS = 15_000, 200


@pytest.mark.slow
def test_rows_and_answers_are_never_all_in_memory(tmp_path):
    """As lists of numbers they took 100 MB per million tokens and more."""
    found = rises(tmp_path, ROWS, NEW_TOKENS)
    assert found["generate"][0] == (ROWS + ROWS // 20) * NEW_TOKENS
    for name, (tokens, rise) in found.items():
        assert rise / MEGA < 40 + 20 * tokens / MEGA, name
