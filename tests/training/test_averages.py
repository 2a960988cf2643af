"""Every average is over the supervised tokens of the whole step, however they are cut up."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from distill.data.datamodule import collate, collate_packed
from distill.errors import UserError
from distill.losses import forward_kl
from distill.training import module
from distill.training.meter import Meter
from distill.training.optim import scale_and_clip


def test_meter_is_a_ratio_of_sums() -> None:
    """1 token of KL 1 and 3 tokens of KL 3 are 2.5 per token, not the mean of means, 2."""
    meter = Meter()
    meter.add(
        {"divergence": torch.tensor(1.0), "alpha": torch.tensor(0.5), "tokens": torch.tensor(1)}
    )
    meter.add(
        {"divergence": torch.tensor(9.0), "alpha": torch.tensor(0.5), "tokens": torch.tensor(3)}
    )
    means = meter.read(torch.device("cpu"))
    assert means == {"divergence": 2.5, "alpha": 0.25, "agreement": 0.0, "tokens": 4.0}
    assert meter.read(torch.device("cpu"))["tokens"] == 0.0


def test_scaled_gradients_are_clipped_by_their_scaled_norm() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([6.0, 8.0])
    assert scale_and_clip([parameter], scale=0.5, max_norm=1.0) == pytest.approx(5.0)
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))
    scale_and_clip([parameter], scale=3.0, max_norm=0.0)
    torch.testing.assert_close(parameter.grad, torch.tensor([1.8, 2.4]))


def test_a_gradient_that_is_not_finite_never_reaches_the_optimizer() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, float("nan")])
    with pytest.raises(UserError, match=r"optimizer\.lr"):
        scale_and_clip([parameter], scale=1.0, max_norm=1.0)


def one_step(tiny: Any, folder: Path, monkeypatch: Any, windows: list[Any], tokens: int) -> Any:
    class Fixed(tiny.Windows):
        def _windows(self) -> Any:
            yield from windows

    result, draft, _ = tiny.train(folder, monkeypatch, tokens=tokens, datamodule=Fixed())
    return result, torch.cat([p.detach().flatten() for p in draft.parameters()])


def test_micro_batches_equal_one_batch(tiny, tmp_path, monkeypatch) -> None:
    rows = [tiny.micro_batch(1, [tiny.marks(1)]), tiny.micro_batch(2, [tiny.marks(3)])]
    both = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    _, cut = one_step(tiny, tmp_path / "cut", monkeypatch, [rows], tokens=4)
    _, whole = one_step(tiny, tmp_path / "whole", monkeypatch, [[both]], tokens=4)
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-6)


def test_a_window_without_supervised_tokens_changes_nothing(tiny, tmp_path, monkeypatch) -> None:
    full = [tiny.micro_batch(1, [tiny.marks(4)])]
    empty = [tiny.micro_batch(2, [tiny.marks(0)]), tiny.micro_batch(3, [tiny.marks(0)])]
    mixed = [*full, *empty]
    plain, expected = one_step(tiny, tmp_path / "plain", monkeypatch, [full], tokens=4)
    for name, windows in {"between": [empty, full], "beside": [mixed]}.items():
        result, weights = one_step(tiny, tmp_path / name, monkeypatch, windows, tokens=4)
        assert (result["steps"], result["train_tokens"]) == (plain["steps"], 4)
        assert torch.equal(weights, expected)


def test_the_optimizer_sees_the_gradient_of_the_mean(tiny, tmp_path, monkeypatch) -> None:
    seen: list[torch.Tensor] = []

    def recorded(parameters: Any, scale: float, max_norm: float) -> float:
        parameters = list(parameters)
        norm = scale_and_clip(parameters, scale, max_norm=0.0)
        seen.append(torch.cat([p.grad.flatten() for p in parameters]))
        return norm

    monkeypatch.setattr(module, "scale_and_clip", recorded)
    rows = [tiny.micro_batch(1, [tiny.marks(1)]), tiny.micro_batch(2, [tiny.marks(3)])]
    one_step(tiny, tmp_path, monkeypatch, [rows], tokens=4)

    draft, target = tiny.llama(16, seed=1), tiny.llama(32, seed=0)
    losses = []
    for row in rows:
        wanted = row["supervised"][0, 1:]  # the state before a supervised token predicts it
        q, p = (m(input_ids=row["input_ids"]).logits[0, :-1][wanted] for m in (draft, target))
        losses.append(forward_kl(q, p.detach()))
    torch.cat(losses).mean().backward()
    expected = torch.cat([p.grad.flatten() for p in draft.parameters()])
    torch.testing.assert_close(seen[0], expected, rtol=1e-4, atol=1e-6)


def test_packed_rows_train_like_rows_of_their_own(tiny, tmp_path, monkeypatch) -> None:
    rows = [
        {"input_ids": [5, 6, 7, 8], "prompt_length": 2},
        {"input_ids": [9, 10], "prompt_length": 0},
        {"input_ids": [11, 12, 13], "prompt_length": 1},
    ]
    batches = {
        "plain": collate(rows, [0, 1, 2]),
        "packed": collate_packed(rows, [0, 1, 2], "train", width=6),
    }
    found = [
        one_step(tiny, tmp_path / name, monkeypatch, [[batch]], tokens=5)[1]
        for name, batch in batches.items()
    ]
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)
