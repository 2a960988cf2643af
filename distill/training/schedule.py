"""Learning-rate factor as a function of the share of the budget that is spent."""

import math

from distill.errors import UserError
from distill.schema import ScheduleConfig


def check_schedule(schedule: ScheduleConfig) -> None:
    """Raise UserError for a schedule that cannot be followed."""
    if schedule.name not in ("cosine", "wsd", "constant"):
        raise UserError(f"schedule.name is {schedule.name}; use cosine, wsd or constant")
    for name in ("warmup", "floor", "decay"):
        if not 0.0 <= getattr(schedule, name) <= 1.0:
            raise UserError(f"schedule.{name} is {getattr(schedule, name)}; use a share, 0 to 1")
    if schedule.name == "wsd" and schedule.warmup + schedule.decay > 1.0:
        raise UserError(
            f"schedule.warmup {schedule.warmup} + schedule.decay {schedule.decay} is above 1"
        )


def factor(schedule: ScheduleConfig, progress: float) -> float:
    """What the learning rate is multiplied by at `progress` in [0, 1] of the budget.

    A linear rise to 1 over `warmup`; then `cosine` falls along half a cosine to `floor`, `wsd`
    stays at 1 and falls linearly to `floor` over the last `decay` (Hu et al. 2024, MiniCPM, section
    4), `constant` stays at 1.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < schedule.warmup:
        return progress / schedule.warmup
    if schedule.name == "constant":
        return 1.0
    start = schedule.warmup if schedule.name == "cosine" else 1.0 - schedule.decay
    if progress <= start:
        return 1.0
    done = (progress - start) / (1.0 - start)
    kept = 0.5 * (1.0 + math.cos(math.pi * done)) if schedule.name == "cosine" else 1.0 - done
    return schedule.floor + (1.0 - schedule.floor) * kept
