"""Teacher-forced agreement against the definition, and chunking that changes nothing."""

import functools
import weakref
from dataclasses import astuple
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from distill.errors import UserError
from distill.evaluate import screening
from distill.evaluate.screening import (
    Agreement,
    RowAgreement,
    Trajectory,
    behind_the_best,
    choose,
    pool,
    teacher_forced,
    token_agreement,
)
from distill.losses.fused import BLOCK_ROWS
from distill.losses.head import Head
from tests.evaluate.conftest import tiny
from tests.naive_eagle3 import unrolled
from tests.tiny import tiny_head


def rows(*lengths: tuple[int, int]) -> list[Trajectory]:
    generator = torch.Generator().manual_seed(5)
    return [
        Trajectory(f"r{i}", torch.randint(40, (n,), generator=generator).tolist(), prompt)
        for i, (n, prompt) in enumerate(lengths)
    ]


def of_probabilities(*probabilities: float) -> Head:
    """A head whose logits are log p where the hidden state is 1."""
    return Head(torch.tensor(probabilities)[:, None].log())


def by_definition(p_logits: Tensor, q_logits: Tensor, temperature: float) -> Tensor:
    """KL(p‖q), Σ min(p, q), equal argmax: [3, T]."""
    p, q = (x / temperature for x in (p_logits, q_logits))
    kl = (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)
    overlap = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1)
    return torch.stack([kl, overlap, (p.argmax(-1) == q.argmax(-1)).to(p)])


@pytest.mark.parametrize(
    ("temperature", "alpha", "kl"),
    [
        (1.0, 0.8, 0.0920),
        # p² ∝ .25 .09 .04 = .6579 .2368 .1053 and q² ∝ .49 .04 .01 = .9074 .0741 .0185
        (0.5, 0.7505, 0.2466),
    ],
)
def test_agreement_by_hand(temperature: float, alpha: float, kl: float) -> None:
    p, q = (of_probabilities(*x).at(temperature) for x in ((0.5, 0.3, 0.2), (0.7, 0.2, 0.1)))
    one = torch.ones(1, 1)
    found = token_agreement(one, q, one, p)
    assert found.alpha.item() == pytest.approx(alpha, abs=1e-4)
    assert found.values.item() == pytest.approx(kl, abs=1e-4)
    assert found.agreement.item() == 1.0


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.0])
def test_agreement_is_the_definition_under_scale_and_soft_cap(temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    hidden, theirs = (torch.randn(300, width, generator=generator) for width in (4, 6))
    draft = Head(torch.randn(50, 4, generator=generator), scale=0.7, softcap=3.0)
    target = Head(torch.randn(50, 6, generator=generator), torch.randn(50, generator=generator))
    found = token_agreement(hidden, draft.at(temperature), theirs, target.at(temperature))
    expected = by_definition(target.logits(theirs), draft.logits(hidden), temperature)
    torch.testing.assert_close(torch.stack(list(found)), expected, rtol=1e-4, atol=1e-5)


def test_copy_has_alpha_one_kl_zero() -> None:
    target = tiny(0)
    copy = {"copy": lambda: target}
    found = teacher_forced(target, copy, rows((9, 3), (5, 0)), 40)
    assert found["copy"].alpha.value == pytest.approx(1.0)
    assert found["copy"].kl.value == pytest.approx(0.0, abs=1e-6)
    assert [row.tokens for row in found["copy"].rows] == [6, 4]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_equals_the_definition_over_supervised_positions(
    monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    monkeypatch.setattr(screening, "CHUNK", 4)  # rows end inside, on and across chunks,
    monkeypatch.setattr(screening, "BATCH_TOKENS", 20)  # batches hold one or two of them
    target, draft = tiny(0, vocab_size=48), tiny(1, vocab_size=44)  # padded heads: 40 are real
    data = rows((11, 4), (9, 5), (13, 9), (6, 0), (2, 2))
    found = teacher_forced(target, {"d": lambda: draft}, data, 40, temperature=temperature)["d"]
    expected = [row_by_definition(target, draft, row, temperature) for row in data[:-1]]
    assert [row.id for row in found.rows] == ["r0", "r1", "r2", "r3"]  # in the order given
    assert [row.tokens for row in found.rows] == [len(one[0]) for one in expected] == [7, 4, 4, 5]
    for row, one in zip(found.rows, expected, strict=True):
        assert (row.kl, row.alpha, row.agreement) == pytest.approx(one.sum(-1).tolist(), abs=1e-4)
    kl, alpha, agreement = torch.cat(expected, -1).mean(-1).tolist()
    assert found.alpha.value == pytest.approx(alpha, abs=1e-5)
    assert found.kl.value == pytest.approx(kl, abs=1e-5)
    assert found.agreement.value == pytest.approx(agreement)


def row_by_definition(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, row: Trajectory, temperature: float
) -> Tensor:
    """[3, N] over the 40 real ids, from whole logits."""
    with torch.no_grad():
        p, q = (model(torch.tensor([row.tokens])).logits[0, :, :40] for model in (target, draft))
    wanted = [position - 1 for position in range(max(row.prompt_length, 1), len(row.tokens))]
    return by_definition(p[wanted], q[wanted], temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_heads_first_draft_is_compared_with_the_whole_distribution(temperature: float) -> None:
    target = tiny(0, num_hidden_layers=6)
    kept = torch.arange(0, 40, 3)
    head = tiny_head(kept, max_position_embeddings=2048)
    data = rows((11, 4), (9, 0), (2, 0))  # the last has no entry: nothing to predict
    found = teacher_forced(target, {"h": lambda: head}, data, 38, temperature=temperature)["h"]
    kept = kept[kept < 38]
    for row, one in zip(data, found.rows, strict=True):
        with torch.no_grad():
            read = target(torch.tensor([row.tokens]), output_hidden_states=True)
            features = torch.cat([read.hidden_states[n][0] for n in (2, 3, 3)], -1)
            embedded = target.get_input_embeddings()(torch.tensor(row.tokens[1:]))
            places = range(max(row.prompt_length - 1, 1), len(row.tokens) - 1)
            outputs = [unrolled(head, embedded, features, at - 1, 1)[0] for at in places]
        assert one.tokens == len(outputs) == max(0, len(row.tokens) - 1 - max(row.first, 1))
        alpha = 0.0
        for at, output in zip(places, outputs, strict=True):
            q = torch.zeros(38)
            q[kept] = (head.lm_head(output)[: len(kept)] / temperature).softmax(-1)
            p = (read.logits[0, at, :38] / temperature).softmax(-1)
            alpha += torch.minimum(p, q).sum().item()
        assert one.alpha == pytest.approx(alpha, abs=1e-4)


class Widest(TorchDispatchMode):
    """The most rows of any tensor [rows, V] that is made inside."""

    def __init__(self, vocabulary_size: int):
        super().__init__()
        self.size, self.rows = vocabulary_size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        for one in out if isinstance(out, tuple | list) else [out]:
            if isinstance(one, Tensor) and one.shape[-1:] == (self.size,):
                self.rows = max(self.rows, one.shape[:-1].numel())
        return out


def test_logits_exist_for_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "CHUNK", 64)
    target, draft = tiny(0, vocab_size=397), tiny(1, vocab_size=397)
    with Widest(397) as widest:
        teacher_forced(target, {"d": lambda: draft}, rows(*[(100, 0)] * 4), 397)
    assert widest.rows <= 5 * BLOCK_ROWS < 4 * 99  # the kernel's five buffers for one block


def test_a_draft_reads_rows_of_like_length_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "BATCH_TOKENS", 16)
    draft, shapes = tiny(1), []
    draft.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    data = rows((9, 0), (5, 0), (9, 1), (4, 0))
    teacher_forced(tiny(0), {"d": lambda: draft}, data, 40)
    assert [shape for shape in shapes if shape != (1, 3)] == [(2, 4), (2, 8)]  # but for check_head


def test_a_row_beyond_a_drafts_context_is_one_clear_line() -> None:
    short = {"short": lambda: tiny(1, max_position_embeddings=8)}
    teacher_forced(tiny(0), short, rows((9, 3)), 40)  # the last is not read
    with pytest.raises(UserError, match=r"row of 9 tokens .* candidate \(8\): lower data.max_l"):
        teacher_forced(tiny(0), short, rows((5, 3), (10, 3)), 40)


def test_a_draft_whose_head_is_not_known_is_refused() -> None:
    draft = tiny(1)
    draft.lm_head.register_forward_hook(lambda *args: 2 * args[2])
    with pytest.raises(UserError, match=r"teach distill\.teacher\.head"):
        teacher_forced(tiny(0), {"d": lambda: draft}, rows((9, 3)), 40)


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
    found = teacher_forced(target, drafts, data, 40)
    assert len(passes) - proof == 2
    assert found.keys() == drafts.keys()


def test_gaps_to_the_best_are_paired_by_hand() -> None:
    """0.6 and 0.4 of two rows of 10 tokens against 0.1 less on each: 0.1, whichever are drawn."""

    def agreement(*alphas: float) -> Agreement:
        sums = [RowAgreement(str(n), 10, 10 * a, 0.0, 0.0) for n, a in enumerate(alphas)]
        return pool(sums)

    found = {"worse": agreement(0.5, 0.3), "best": agreement(0.6, 0.4)}
    gaps = behind_the_best(found)
    assert astuple(gaps["worse"]) == pytest.approx((0.1, 0.1, 0.1, 0.0))
    assert astuple(gaps["best"]) == (0.0, 0.0, 0.0, 0.0)
    low, high = found["worse"].alpha.low, found["worse"].alpha.high
    assert high - low > 0.2  # each alone is uncertain


def test_no_supervised_token_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="token to predict"):
        teacher_forced(tiny(0), {}, rows((4, 4)), 40)


def test_choose_takes_the_best_and_always_the_last() -> None:
    names = ["a", "b", "c", "last"]
    found = dict(zip(names, (0.2, 0.5, 0.4, 0.1), strict=True))
    assert choose(found, names, 3) == ["b", "c", "last"]
    assert choose(found, names, 1) == ["last"]
    assert choose(found, names, 9) == names
