"""Progress of a long loop: a bar on a terminal, a line now and then in a log."""

import logging
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

logger = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 15.0
Item = TypeVar("Item")


class Progress:
    """Counts items, and tokens where there are any. total: None when it is not known."""

    def __init__(self, name: str, total: int | None = None):
        self.name, self.total = name, total
        self.done = self.tokens = 0
        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
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
        total = "" if self.total is None else f"/{self.total}"
        rate = f", {self.tokens_per_second:.0f} tokens/s" if self.tokens else ""
        return f"{self.name}: {self.done}{total}{rate}"

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / max(time.monotonic() - self._start, 1e-9)

    def advance(self, items: int, tokens: int = 0) -> None:
        self.done += items
        self.tokens += tokens
        note = f"{self.tokens_per_second:.0f} tokens/s" if self.tokens else ""
        self._bar.update(self._task, completed=self.done, note=note)
        due = time.monotonic() - self._said > SECONDS_BETWEEN_LINES
        if self._bar.disable and due and self.done != self.total:  # the last line is the end's
            self._said = time.monotonic()
            logger.info("%s", str(self))

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            yield item
            self.advance(1)
