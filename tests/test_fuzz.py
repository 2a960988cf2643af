"""Bad inputs by seed: each is used, refused in one line, or skipped and counted."""

import pytest

from tests.fuzz import KINDS, table
from tests.pipelines.conftest import write_model


@pytest.mark.parametrize(
    ("inputs", "seed"), [(25, 0), pytest.param(200, 1000, marks=pytest.mark.slow)]
)
def test_bad_input_ends_in_one_line(tmp_path, inputs, seed):
    ends = table(write_model(tmp_path / "model"), inputs, seed)
    assert ends.keys() == KINDS.keys()
    assert all(counted.total() == inputs for counted in ends.values())
    wrong = [f"{kind}: {end}" for kind, counted in ends.items() for end in counted if end[0] == "("]
    assert not wrong
