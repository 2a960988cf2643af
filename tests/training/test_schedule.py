import pytest

from distill.training.config import ScheduleConfig
from distill.training.schedule import factor


@pytest.mark.parametrize(
    ("name", "progress", "expected"),
    [
        ("cosine", 0.05, 0.5),  # half of the warm-up
        ("cosine", 0.1, 1.0),
        ("cosine", 0.4, 0.2 + 0.8 * 0.75),  # a third of the way down: cos 60° is ½
        ("cosine", 0.55, 0.2 + 0.8 * 0.5),
        ("cosine", 1.0, 0.2),
        ("cosine", 1.3, 0.2),  # an overshooting last window
        ("wsd", 0.1, 1.0),
        ("wsd", 0.6, 1.0),
        ("wsd", 0.8, 0.2 + 0.8 * 0.5),
        ("wsd", 1.0, 0.2),
        ("constant", 0.05, 0.5),
        ("constant", 1.0, 1.0),
    ],
)
def test_hand_worked_factors(name: str, progress: float, expected: float) -> None:
    schedule = ScheduleConfig(name=name, warmup=0.1, floor=0.2, decay=0.4)
    assert factor(schedule, progress) == pytest.approx(expected)


def test_no_warmup_starts_at_the_full_rate() -> None:
    assert factor(ScheduleConfig(warmup=0.0), 0.0) == 1.0


def test_decaying_everything_from_the_start_divides_by_nothing() -> None:
    assert factor(ScheduleConfig(name="cosine", warmup=1.0, floor=0.1), 1.0) == 1.0
