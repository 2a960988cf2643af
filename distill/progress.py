"""Progress of a long loop: a bar on a terminal, a line now and then in a log."""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

logger = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 10.0
MARKS = 100
"""About so many moments of the past are kept: they bound the memory, not the accuracy."""
Item = TypeVar("Item")
_quiet: list[bool] = []


@contextmanager
def quietly() -> Iterator[None]:
    """Nothing inside shows its progress, nor says anything but errors: it is no work of its own."""
    ours = logging.getLogger("distill")
    level = ours.level
    ours.setLevel(logging.ERROR)
    _quiet.append(True)
    try:
        yield
    finally:
        _quiet.pop()
        ours.setLevel(level)


def terminal() -> Console | None:
    """Where a bar can be drawn; None where there is none, or all is quiet."""
    console = Console(stderr=True)
    return console if console.is_terminal and not _quiet else None


class Pace:
    """The time that is left, at the pace of the recent past: the later half since the first mark.

    What came before the first mark is no part of it. Whoever marks the end of the first item leaves
    out what that item alone waited for: loading, compiling, first touches. A warm-up of several
    items is left behind once as much time again has passed.
    """

    def __init__(self) -> None:
        self._marks: deque[tuple[float, float]] = deque()
        self._now: tuple[float, float] | None = None

    def mark(self, done: float) -> None:
        """Note that by now `done` of the work is done, in any unit."""
        now = time.monotonic()
        self._now = now, done
        if not self._marks:
            self._began = now
        elif now - self._marks[-1][0] < (now - self._began) / MARKS:
            return
        self._marks.append(self._now)
        half = (now + self._began) / 2
        while len(self._marks) > 1 and self._marks[1][0] <= half:
            self._marks.popleft()

    def left(self, rest: float) -> str:
        """The time that `rest` of the work takes, as h:mm:ss; `?` before there is a pace."""
        if rest <= 0:
            return str(timedelta(0))
        if self._now is None or self._now[1] <= self._marks[0][1]:
            return "?"
        (since, before), (now, done) = self._marks[0], self._now
        return str(timedelta(seconds=round((now - since) * rest / (done - before))))


class Progress:
    """Counts items, and tokens where there are any.

    total: of items; None when it is not known. With it, each line of the log says the time left.
    first: what the first item waits for, such as compiling; it is said before anything is done.
    """

    def __init__(self, name: str, total: int | None = None, first: str = ""):
        self.name, self.total, self._first = name, total, first
        self.done: float = 0
        self.tokens = 0
        console = terminal()
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=console is None,
            transient=True,
        )
        self._task = self._bar.add_task(name, total=total, note=first)
        self._pace = Pace()

    def __enter__(self) -> Self:
        self._start = self._said = time.monotonic()
        self._bar.start()
        if self._first and self.total != 0 and self._bar.disable:
            logger.info("%s: %s", str(self), self._first)
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
        total = "" if self.total is None else f"/{self.total}"
        return ", ".join([f"{self.name}: {int(self.done)}{total}", *self._notes()])

    @property
    def tokens_per_second(self) -> float:
        """Tokens of this session over its seconds."""
        return self.tokens / max(time.monotonic() - self._start, 1e-9)

    def warm(self) -> None:
        """Loading and compiling are done: the time left is counted from now on."""
        self._pace.mark(self.done)

    def advance(self, items: float, tokens: int = 0) -> None:
        """Count what was done since the last call."""
        self.reach(self.done + items, tokens)

    def reach(self, done: float, tokens: int = 0) -> None:
        """Set how many items are done, parts of them and work of others too; tokens: since last."""
        self.done = done
        self.tokens += tokens
        self._pace.mark(done)
        if not self._bar.disable:
            self._bar.update(self._task, completed=done, note=", ".join(self._notes()))
            return
        due = time.monotonic() - self._said > SECONDS_BETWEEN_LINES
        if due and done != self.total:  # the last line is the end's
            self._said = time.monotonic()
            logger.info("%s", str(self))

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each counted when the next is asked for."""
        for item in items:
            yield item
            self.advance(1)

    def _notes(self) -> Iterator[str]:
        if self.tokens:
            yield f"{self.tokens_per_second:.0f} tokens/s"
        if self.done and self.total is not None and self.done < self.total:
            yield f"{self._pace.left(self.total - self.done)} left"
