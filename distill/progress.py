"""Progress of a long loop: a bar on a terminal, a line now and then in a log."""

import logging
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

logger = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 15.0
Item = TypeVar("Item")


def time_left(seconds: float, done: float, left: float) -> str:
    """The time that `left` of anything takes when `done` took `seconds`, as h:mm:ss; `?` before."""
    return str(timedelta(seconds=round(seconds * left / done))) if done > 0 else "?"


class Progress:
    """Counts items, and tokens where there are any.

    total: of items; None when it is not known. With it, each line of the log says the time left.
    """

    def __init__(self, name: str, total: int | None = None):
        self.name, self.total = name, total
        self.done = self.tokens = 0
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total, note="")

    def __enter__(self) -> Self:
        self._start = self._said = time.monotonic()
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if kind is None:
            logger.info("%s", str(self))

    def __str__(self) -> str:
        total = left = ""
        if self.total is not None:
            total = f"/{self.total}"
            if self.done < self.total:
                seconds = time.monotonic() - self._start
                left = f", {time_left(seconds, self.done, self.total - self.done)} left"
        rate = f", {self.tokens_per_second:.0f} tokens/s" if self.tokens else ""
        return f"{self.name}: {self.done}{total}{rate}{left}"

    @property
    def tokens_per_second(self) -> float:
        """Tokens of this session over its seconds."""
        return self.tokens / max(time.monotonic() - self._start, 1e-9)

    def advance(self, items: int, tokens: int = 0) -> None:
        """Count what was done since the last call."""
        self.done += items
        self.tokens += tokens
        note = f"{self.tokens_per_second:.0f} tokens/s" if self.tokens else ""
        self._bar.update(self._task, completed=self.done, note=note)
        due = time.monotonic() - self._said > SECONDS_BETWEEN_LINES
        if self._bar.disable and due and self.done != self.total:  # the last line is the end's
            self._said = time.monotonic()
            logger.info("%s", str(self))

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each counted when the next is asked for."""
        for item in items:
            yield item
            self.advance(1)
