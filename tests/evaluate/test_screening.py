"""Teacher-forced agreement against the definition, and chunking that changes nothing."""

import functools
import weakref
from dataclasses import astuple

import pytest
import torch
from transformers import LlamaForCausalLM

from distill.errors import UserError
from distill.evaluate import screening
from distill.evaluate.screening import (
    Agreement,
    RowAgreement,
    Trajectory,
    behind_the_best,
    choose,
    compare,
    pool,
    target_passes,
    teacher_forced,
)
from distill.evaluate.statistics import Bootstrap

from .conftest import tiny

BOOTSTRAP = Bootstrap(100)


def rows(*lengths: tuple[int, int]) -> list[Trajectory]:
    generator = torch.Generator().manual_seed(5)
    return [
        Trajectory(f"r{i}", torch.randint(40, (n,), generator=generator).tolist(), prompt)
        for i, (n, prompt) in enumerate(lengths)
    ]


def test_compare_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.7, 0.2, 0.1]])
    alpha, kl, agreement = compare(p.log(), q.log(), 1.0).tolist()
    assert (alpha, agreement) == (pytest.approx(0.8), 1.0)
    assert kl == pytest.approx(0.0920, abs=1e-4)


def test_copy_has_alpha_one_kl_zero() -> None:
    target = tiny(0)
    copy = {"copy": lambda: target}
    found = teacher_forced(target, copy, rows((9, 3), (5, 0)), 40, bootstrap=BOOTSTRAP)
    assert found["copy"].alpha.value == pytest.approx(1.0)
    assert found["copy"].kl.value == pytest.approx(0.0, abs=1e-6)
    assert [row.tokens for row in found["copy"].rows] == [6, 4]


def test_equals_the_definition_over_supervised_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "CHUNK", 4)  # prompts end inside, on and across chunks
    target, draft = tiny(0, vocab_size=48), tiny(1, vocab_size=44)  # padded heads: 40 are real
    data = rows((11, 4), (9, 5), (13, 9), (6, 0))
    total, count = 0.0, 0
    for row in data:
        ids = torch.tensor([row.tokens])
        with torch.no_grad():
            p = target(ids).logits[0, :, :40].softmax(-1)
            q = draft(ids).logits[0, :, :40].softmax(-1)
        for position in range(max(row.prompt_length, 1), len(row.tokens)):
            total += torch.minimum(p, q)[position - 1].sum().item()
            count += 1
    found = teacher_forced(target, {"d": lambda: draft}, data, 40, bootstrap=BOOTSTRAP)["d"]
    assert found.alpha.value == pytest.approx(total / count, abs=1e-5)
    assert sum(row.tokens for row in found.rows) == count


def test_one_candidate_at_a_time_and_one_target_pass_a_row() -> None:
    target, alive, passes = tiny(0), weakref.WeakSet(), []
    data = rows((9, 3), (5, 0), (4, 4))

    def load(seed: int) -> LlamaForCausalLM:
        assert not alive, "the candidate before is still in memory"
        draft = tiny(seed)
        alive.add(draft)
        return draft

    drafts = {f"d{seed}": functools.partial(load, seed) for seed in (1, 2, 3)}
    target.register_forward_hook(lambda *_: passes.append(1))
    target.base_model.register_forward_hook(lambda *_: passes.append(1))
    proof = 3  # check_head: the whole model, its inner model in it, and that alone
    found = teacher_forced(target, drafts, data, 40, bootstrap=BOOTSTRAP)
    assert len(passes) - proof == target_passes(data) == 2
    assert found.keys() == drafts.keys()


def test_gaps_to_the_best_are_paired_by_hand() -> None:
    """0.6 and 0.4 of two rows of 10 tokens against 0.1 less on each: 0.1, whichever are drawn."""

    def agreement(*alphas: float) -> Agreement:
        sums = [RowAgreement(str(n), 10, 10 * a, 0.0, 0.0) for n, a in enumerate(alphas)]
        return pool(sums, BOOTSTRAP)

    found = {"worse": agreement(0.5, 0.3), "best": agreement(0.6, 0.4)}
    gaps = behind_the_best(found, BOOTSTRAP)
    assert astuple(gaps["worse"]) == pytest.approx((0.1, 0.1, 0.1))
    assert astuple(gaps["best"]) == (0.0, 0.0, 0.0)
    assert found["worse"].alpha.high - found["worse"].alpha.low == pytest.approx(0.2)


def test_no_supervised_token_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="token to predict"):
        teacher_forced(tiny(0), {}, rows((4, 4)), 40, bootstrap=BOOTSTRAP)


def test_choose_takes_the_best_and_always_the_last() -> None:
    names = ["a", "b", "c", "last"]
    found = dict(zip(names, (0.2, 0.5, 0.4, 0.1), strict=True))
    assert choose(found, names, 3) == ["b", "c", "last"]
    assert choose(found, names, 1) == ["last"]
    assert choose(found, names, 9) == names
