"""Before any training: what a draft of a given size could gain on this hardware."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from distill.errors import UserError
from distill.evaluate.benchmark.step_times import (
    DRAFTED,
    Setting,
    draft_step,
    time_steps,
    verify_steps,
)
from distill.speculative.prediction import (
    BreakEven,
    Cost,
    best_k,
    break_even_alpha,
    predicted_speedup,
)


@dataclass(frozen=True)
class Prospect:
    """A draft's gain under one load. Seconds are of one step; costs[k] holds c and v(k)."""

    draft: str
    parameters: int
    setting: Setting
    target_seconds: float
    draft_seconds: float
    costs: dict[int, Cost]

    @property
    def ceiling(self) -> float:
        """Speedup of a perfect draft (alpha = 1) at its best k."""
        return self.at(1.0)

    @property
    def break_even(self) -> BreakEven | None:
        return break_even_alpha(self.costs)

    def at(self, alpha: float) -> float:
        """Predicted speedup at this alpha and its best k."""
        k = best_k(alpha, self.costs)
        return predicted_speedup(alpha, k, self.costs[k])

    def best_k(self, alpha: float) -> int:
        return best_k(alpha, self.costs)


def probe(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    settings: Sequence[Setting],
    num_draft_tokens: Sequence[int],
    repetitions: int = 9,
) -> Iterator[list[Prospect]]:
    """Time the engine's steps under each setting in turn: one list of prospects, a draft each.

    The drafts' weights may be random. UserError for an empty list or a k below 1.
    """
    if not drafts or not settings or not num_draft_tokens or min(num_draft_tokens) < 1:
        raise UserError("a probe needs a draft, a batch size, a context and values of k from 1 on")
    for setting in settings:
        yield _under(target, drafts, setting, list(num_draft_tokens), repetitions)


def advice(prospects: Sequence[Prospect]) -> str:
    """One sentence for one load: the size to train, or that none of them can pay."""
    load = f"at batch {prospects[0].setting.batch_size}, context {prospects[0].setting.context}"
    best = min(prospects, key=lambda one: one.break_even.alpha if one.break_even else 2.0)
    if best.break_even is None or best.ceiling <= 1:
        return f"No draft of these can pay here {load}: a perfect one reaches {best.ceiling:.2f}×."
    return (
        f"Train {best.draft} {load}: it pays from alpha {best.break_even.alpha:.2f} "
        f"(k = {best.break_even.num_draft_tokens}); at alpha 0.7 expect {best.at(0.7):.2f}× with "
        f"k = {best.best_k(0.7)}; a perfect draft reaches {best.ceiling:.2f}×."
    )


def _under(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    setting: Setting,
    ks: list[int],
    repetitions: int,
) -> list[Prospect]:
    verify = verify_steps(target, [1, *(k + 1 for k in ks)], setting)
    steps = {f"verify {width}": step for width, step in verify.items()}
    steps |= {f"draft {name}": draft_step(draft, target, setting) for name, draft in drafts.items()}
    seconds = time_steps(steps, repetitions, target.device)
    step = seconds["verify 1"]
    prospects: list[Prospect] = []
    for name, draft in drafts.items():
        drafting = seconds[f"draft {name}"] / DRAFTED
        prospects.append(
            Prospect(
                draft=name,
                parameters=sum(weight.numel() for weight in draft.parameters()),
                setting=setting,
                target_seconds=step,
                draft_seconds=drafting,
                costs={k: Cost(drafting / step, seconds[f"verify {k + 1}"] / step) for k in ks},
            )
        )
    return prospects
