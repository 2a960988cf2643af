"""Arms that are compared run there and back, A B B A: what drifts meanwhile meets all alike."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

Arm = TypeVar("Arm")


def there_and_back(arms: Sequence[Arm], turns: int) -> Iterator[tuple[int, Arm]]:
    """Yield (turn, arm): all arms in order in turn 0, in reverse in turn 1, and so on."""
    for turn in range(turns):
        for arm in arms if turn % 2 == 0 else reversed(arms):
            yield turn, arm
