"""The moving average of weights: by hand, in what is measured and written, and over a restart."""

from pathlib import Path

import pytest
import torch
from torch import nn

from distill.errors import UserError
from distill.schema import OptimizerConfig
from distill.training.average import WeightAverage
from distill.training.optim import check_optimizer


def test_average_by_hand() -> None:
    """Weights 1, 4, 0 after three steps. The decays are 1/10, 2/11 and 0.2 (the limit, below 3/12).

    1; 2/11·1 + 9/11·4 = 38/11; 0.2·38/11 + 0.8·0 = 7.6/11.
    """
    weight = nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage([weight], decay=0.2)
    with average.applied():  # nothing averaged yet
        assert weight.item() == 1.0
    for value in (1.0, 4.0, 0.0):
        weight.data.fill_(value)
        average.update()
    with average.applied():
        assert weight.item() == pytest.approx(7.6 / 11)
    assert weight.item() == 0.0


def test_weights_come_back_after_an_error() -> None:
    weight = nn.Parameter(torch.tensor([1.0]))
    average = WeightAverage([weight], decay=0.9)
    average.update()
    weight.data.fill_(3.0)
    seen = []

    def fail() -> None:
        with average.applied():
            seen.append(weight.item())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [1.0]
    assert weight.item() == 3.0


def written(result) -> list[torch.Tensor]:
    last = torch.load(Path(result["candidates"][-1]) / "weights.pt")
    return list(last.values())


def test_candidates_hold_the_average_and_training_does_not_see_it(
    tiny, tmp_path, monkeypatch
) -> None:
    plain, draft, _ = tiny.train(tmp_path / "plain", monkeypatch)
    ema = OptimizerConfig(lr=1e-2, ema=0.9)
    averaged, other, _ = tiny.train(tmp_path / "ema", monkeypatch, optimizer=ema)
    for one, two in zip(draft.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    trained = list(draft.state_dict().values())
    assert all(torch.equal(a, b) for a, b in zip(written(plain), trained, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(written(averaged), trained, strict=True))
    numbers = [(Path(r["candidates"][-1]) / "metrics.json").read_text() for r in (plain, averaged)]
    assert numbers[0] != numbers[1]


@pytest.mark.parametrize("ema", [1.0, -0.1])
def test_a_decay_that_is_none_is_refused(ema) -> None:
    with pytest.raises(UserError, match=r"optimizer\.ema"):
        check_optimizer(OptimizerConfig(ema=ema))
