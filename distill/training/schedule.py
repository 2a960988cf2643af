"""Learning-rate factor as a function of the share of the budget that is spent."""

import math

from distill.training.config import ScheduleConfig


def factor(schedule: ScheduleConfig, progress: float) -> float:
    """What the learning rate is multiplied by at `progress` in [0, 1] of the budget.

    The factor rises in a line to 1 over `warmup`. Then `cosine` falls along half a cosine to
    `floor`, `wsd` stays at 1 and falls in a line to `floor` over the last `decay` (Hu et al. 2024,
    MiniCPM, section 4), and `constant` stays at 1.
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
