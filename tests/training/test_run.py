import json
import os
import signal
from pathlib import Path

import pytest
import torch

from distill.errors import UserError
from distill.training import module, run
from distill.training.callbacks.resume import save_resumable
from distill.training.config import BudgetConfig, OptimizerConfig, ScheduleConfig, TrainerConfig
from distill.training.optim import scale_learning_rates


def weights(draft: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in draft.parameters()])


@pytest.fixture
def uninterrupted(tiny, tmp_path: Path, monkeypatch):
    return tiny.train(tmp_path / "whole", monkeypatch)


def test_ends_at_the_first_window_that_reaches_the_budget(uninterrupted) -> None:
    result, _, windows = uninterrupted
    # Windows hold 8, 9 and 10 supervised tokens in turn: 71 after eight.
    assert (result["train_tokens"], result["steps"]) == (71, 8)
    assert windows.seen == list(range(8))


def test_each_step_has_the_rate_of_the_budget_spent_by_its_end(tiny, tmp_path, monkeypatch) -> None:
    """Windows of 8, 9, 10 and 8 tokens of 35, and a rate that falls in a line from the start."""
    factors = []

    def recorded(optimizers, factor):
        factors.append(factor)
        scale_learning_rates(optimizers, factor)

    monkeypatch.setattr(module, "scale_learning_rates", recorded)
    falling = ScheduleConfig(name="wsd", warmup=0.0, decay=1.0, floor=0.0)
    tiny.train(tmp_path, monkeypatch, tokens=35, schedule=falling)
    assert factors == pytest.approx([27 / 35, 18 / 35, 8 / 35, 0.0])


@pytest.mark.parametrize(
    ("precision", "dtype", "chosen"),
    [
        ("auto", torch.bfloat16, "bf16-mixed"),
        ("auto", torch.float32, "32-true"),
        ("32-true", torch.bfloat16, "32-true"),
        ("bf16-mixed", torch.float32, "bf16-mixed"),
    ],
)
def test_bf16_is_used_where_the_hardware_multiplies_it(
    monkeypatch, precision, dtype, chosen
) -> None:
    monkeypatch.setattr(run, "pick_dtype", lambda name, device: dtype)
    assert run.pick_precision(TrainerConfig(accelerator="cpu", precision=precision)) == chosen


def test_candidates_lie_evenly_over_the_budget_with_their_numbers(uninterrupted, tmp_path) -> None:
    result, _, _ = uninterrupted
    folders = [Path(path) for path in result["candidates"]]
    assert [path.name for path in folders] == ["tokens-000000035", "tokens-000000071"]
    metrics = json.loads((folders[1] / "metrics.json").read_text())
    assert metrics["tokens"] == 71
    assert 0 < metrics["alpha"] < 1
    assert metrics["kl"] > 0
    assert (folders[1] / "weights.pt").exists()


def test_training_learns(tiny, tmp_path, monkeypatch) -> None:
    runs = [tiny.train(tmp_path / str(n), monkeypatch, tokens=n)[0] for n in (20, 1000)]
    last = [json.loads(Path(r["candidates"][-1], "metrics.json").read_text()) for r in runs]
    assert last[1]["kl"] < 0.8 * last[0]["kl"]
    assert last[1]["alpha"] > last[0]["alpha"]


def truncated(content: bytes) -> bytes:
    return content[:-1000]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(b ^ 255 for b in content[middle:][:64]) + content[middle + 64 :]


class Stop:
    """Sends a signal to this process in the middle of the window at `position`."""

    def __init__(self, teacher, number: int, calls: int):
        self._teacher, self._number, self._calls = teacher, number, calls

    def to(self, device):
        self._teacher.to(device)

    def signal(self, batch, positions):
        self._calls -= 1
        if self._calls == 0:
            os.kill(os.getpid(), self._number)
        return self._teacher.signal(batch, positions)


@pytest.mark.parametrize("muon", [False, True])
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_stopped_run_goes_on_bit_for_bit(
    tiny, tmp_path, monkeypatch, caplog, muon, number, error
) -> None:
    optimizer = OptimizerConfig(lr=1e-2, muon=muon, muon_lr=2.8e-3)

    def train(name: str, **changes):
        # Dropout: the random state must go on, too.
        changes["draft"] = tiny.llama(16, seed=1, attention_dropout=0.2)
        return tiny.train(tmp_path / name, monkeypatch, optimizer=optimizer, **changes)

    whole, draft, seen = train("whole")

    # Two micro-batches a window and two held-out ones after the first: call 13 is in the sixth.
    teacher = Stop(tiny.LiveTeacher(tiny.llama(32, seed=0)), number, calls=13)
    handler = signal.getsignal(number)
    with caplog.at_level("INFO", "distill"), pytest.raises(error):
        train("parts", teacher=teacher)
    assert signal.getsignal(number) == handler
    assert "run the same command again" in caplog.text

    torch.manual_seed(123)  # whatever another process starts with
    resumed, other, rest = train("parts")
    first = rest.seen[0]
    assert 0 < first < 8
    assert rest.seen == seen.seen[first:]
    for key in ("train_tokens", "steps"):
        assert resumed[key] == whole[key]
    assert torch.equal(weights(draft), weights(other))
    names = [[Path(p).name for p in r["candidates"]] for r in (resumed, whole)]
    assert names[0] == names[1]


def test_finished_training_is_not_trained_again(tiny, tmp_path, monkeypatch) -> None:
    first, draft, _ = tiny.train(tmp_path, monkeypatch)
    second, other, _ = tiny.train(tmp_path, monkeypatch)
    assert second == first
    assert torch.equal(weights(draft), weights(other))


@pytest.mark.parametrize("damage", [truncated, flipped])
def test_damaged_newest_checkpoint_falls_back_to_the_one_before(
    tiny, tmp_path, monkeypatch, caplog, damage
) -> None:
    always = TrainerConfig(
        accelerator="cpu", precision="32-true", checkpoints=2, resume_every_seconds=0.0
    )
    whole, draft, _ = tiny.train(tmp_path, monkeypatch, trainer=always)
    latest = tmp_path / "resume" / "latest.ckpt"
    latest.write_bytes(damage(latest.read_bytes()))
    again, other, rest = tiny.train(tmp_path, monkeypatch, trainer=always)
    assert "damaged" in caplog.text
    assert rest.seen[0] == 7  # the eighth window is done again
    assert again["train_tokens"] == whole["train_tokens"]
    assert torch.equal(weights(draft), weights(other))


def test_candidates_of_a_lost_stretch_are_removed(tiny, tmp_path, monkeypatch) -> None:
    lost = tmp_path / "candidates" / "tokens-000000050"
    lost.mkdir(parents=True)
    (lost / "metrics.json").write_text('{"tokens": 50}')
    tiny.train(tmp_path, monkeypatch)
    assert not lost.exists()


def test_what_a_kill_left_half_written_is_removed(tiny, tmp_path, monkeypatch) -> None:
    candidate = tmp_path / "candidates" / ".tokens-000000035.7.partial"
    candidate.mkdir(parents=True)
    checkpoint = tmp_path / "resume" / ".latest.ckpt.7.partial"
    checkpoint.parent.mkdir()
    checkpoint.write_text("half")
    tiny.train(tmp_path, monkeypatch)
    assert not candidate.exists()
    assert not checkpoint.exists()


def test_a_save_that_fails_leaves_the_checkpoints_as_they_were(tmp_path) -> None:
    class FullDisk:
        is_global_zero = True

        def save_checkpoint(self, path: Path) -> None:
            path.write_text("half")
            raise OSError("no space left")

    for name in ("latest", "previous"):
        (tmp_path / f"{name}.ckpt").write_text(name)
    with pytest.raises(OSError, match="no space"):
        save_resumable(FullDisk(), tmp_path)
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"latest.ckpt": "latest", "previous.ckpt": "previous"}


def test_the_target_is_never_in_a_checkpoint(tiny, tmp_path, monkeypatch) -> None:
    tiny.train(tmp_path, monkeypatch)
    saved = torch.load(tmp_path / "resume" / "latest.ckpt", weights_only=True)
    assert set(saved["state_dict"]) == {
        f"student.draft.{name}" for name in tiny.llama(16, seed=1).state_dict()
    }


def test_a_gpu_that_is_not_there_is_refused_at_once(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no GPU here"):
        tiny.train(tmp_path, monkeypatch, trainer=TrainerConfig(accelerator="gpu"))
    assert not any(tmp_path.iterdir())


def test_a_budget_in_minutes_ends_too(tiny, tmp_path, monkeypatch) -> None:
    # A clock that says the same on a busy machine: a window takes a tenth of a second.
    monkeypatch.setattr("distill.training.clock.Clock.lap", lambda clock: 0.1)
    result, _, _ = tiny.train(tmp_path, monkeypatch, budget=BudgetConfig(minutes=0.005))
    assert result["seconds"] == pytest.approx(0.3)
    assert len(result["candidates"]) == 2


def test_freed_memory_is_returned_once_when_the_optimizer_has_its_state(
    tiny, tmp_path, monkeypatch
) -> None:
    built, counts = [], []
    build = module.build_optimizers

    def kept(*arguments):
        built.extend(build(*arguments))
        return built

    monkeypatch.setattr(module, "build_optimizers", kept)
    monkeypatch.setattr(
        module, "return_freed_memory", lambda: counts.append(len(built[0].state_dict()["state"]))
    )
    _, draft, windows = tiny.train(tmp_path, monkeypatch)
    assert len(windows.seen) == 8
    assert counts == [len(list(draft.parameters()))]
