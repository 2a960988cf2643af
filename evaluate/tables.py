"""Tables for a person at a terminal."""

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from distill.evaluate.records import Arm
from distill.evaluate.select import TableRow
from distill.evaluate.statistics import Interval


def candidates_table(table: Sequence[TableRow], champion: Arm) -> Table:
    """One line per candidate and k, the champion marked."""
    view = Table(title="Speculative decoding against plain decoding, same engine and prompts")
    view.add_column("draft", overflow="fold")
    for heading in ("k", "alpha", "accepted", "tokens/pass", "used", "c", "v", "predicted"):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("speedup [95%]", justify="right", no_wrap=True)
    view.add_column("efficiency", justify="right", no_wrap=True)
    for row in table:
        won = row.arm == champion
        view.add_row(
            f"{row.candidate} ★" if won else row.candidate,
            str(row.num_draft_tokens),
            f"{row.alpha.value:.3f}",
            f"{row.alpha_empirical:.3f}",
            f"{row.tokens_per_pass:.2f}",
            f"{row.draft_utilisation:.0%}",
            f"{row.cost_ratio:.3f}",
            f"{row.verify_cost:.2f}",
            f"{row.predicted_speedup:.2f}×",
            _speedup(row.speedup),
            f"{row.engine_efficiency:.2f}",
            style="bold green" if won else None,
        )
    view.caption = (
        "alpha: chance that the next drafted token is accepted, given the earlier ones were "
        "(analytic; accepted: counted). used: accepted of all drafted. c: one draft step, v: one "
        "pass over k+1 tokens, both in target steps. ★ highest lower bound of speedup."
    )
    return view


def as_text(table: Table, width: int = 132) -> str:
    """The table as plain text, the same in a file as on any terminal."""
    with Console(file=io.StringIO(), width=width) as console, console.capture() as captured:
        console.print(table)
    return captured.get()


def _speedup(value: Interval) -> str:
    return f"{value.value:.2f}× [{value.low:.2f}, {value.high:.2f}]"
