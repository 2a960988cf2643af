"""A job that is killed and begun again leaves what an undisturbed one leaves."""

import pytest

from tests.kills import STAGES, outcomes


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["train", "register"])
def test_a_killed_job_leaves_the_same(stage):
    """`python -m tests.kills` kills in every stage."""
    [one] = outcomes(1, seed=STAGES.index(stage))
    assert one.stage == stage
    assert one.differs == ()
