"""A cached teacher says what the live one says, in every epoch, whatever killed its making."""

from itertools import islice

import pytest
import torch

from distill.data.corpus import load_corpus
from distill.data.datamodule import CorpusDataModule, Rows, unsupervised
from distill.errors import UserError
from distill.losses import Head, forward_kl
from distill.losses.dense import HiddenSignal
from distill.losses.reduced import summarise
from distill.losses.sparse import TopK, sampled_divergence, top_k_divergence
from distill.losses.tokens import predicting_positions
from distill.teacher import cache
from distill.teacher.cache import cache_signals
from distill.teacher.cached import CachedTeacher
from distill.teacher.codecs import Hidden, Samples, TopKTail
from distill.teacher.features import ReadSignal
from distill.teacher.live import LiveTeacher
from distill.teacher.shards import plan_layout


@pytest.fixture
def cached(corpus, tmp_path):
    def make(teacher, codec, shard_tokens=20, folder="cache"):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        counts = cache_signals(
            teacher,
            load_corpus(corpus),
            codec,
            place,
            shard_tokens=shard_tokens,
            tokens_per_batch=1,
            seed=3,
        )
        return CachedTeacher(place, codec), counts

    return make


def train_batches(corpus, windows=12):
    """Over two epochs, one row a micro-batch: an epoch has nine rows."""
    module = CorpusDataModule(corpus, tokens_per_batch=12, tokens_per_step=24, seed=1)
    module.setup()
    found = [b for window in islice(module.train_dataloader(), windows) for b in window]
    return found, list(module.val_dataloader())


def logits_of(signal):
    return signal.head.logits(signal.hidden)


def test_rows_of_several_shards_come_in_the_order_of_the_batch(corpus, target, cached) -> None:
    live = LiveTeacher(target())
    teacher, _ = cached(live, Hidden())
    rows = Rows(load_corpus(corpus)["train"], "train")
    batch = rows.batch([7, 0, 5, 2])
    positions = predicting_positions(batch["supervised"])
    torch.testing.assert_close(
        teacher.signal(batch, positions).hidden, live.signal(batch, positions).hidden
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_hidden_is_the_live_signal_over_epochs_and_splits(corpus, target, cached, dtype) -> None:
    live = LiveTeacher(target(dtype), vocabulary_size=30)
    teacher, counts = cached(live, Hidden())
    train, validation = train_batches(corpus)
    rows = [row for batch in train for row in batch["row_index"].tolist()]
    assert len(rows) > 9  # the second epoch has begun
    for batch in [*train, *validation]:
        positions = predicting_positions(batch["supervised"])
        ours, theirs = teacher.signal(batch, positions), live.signal(batch, positions)
        assert ours.hidden.dtype == dtype
        if len(batch["row_index"]) == 1:  # made in the same shape: the same bits
            assert torch.equal(ours.hidden, theirs.hidden)
        torch.testing.assert_close(ours.hidden, theirs.hidden)
        assert torch.equal(ours.head.weight, theirs.head.weight)
    supervised = sum(max(0, n - max(r % 4, 1)) for r, n in enumerate([9, 4, 12, 3, 7, 12, 5]))
    assert counts["tokens"] == supervised + (11 - 1) + (6 - 1)
    header = counts["bytes_per_token"] - 16 * (2 if dtype == torch.bfloat16 else 4)
    assert 0 < header < 10  # the file's own


def test_the_whole_vocabulary_kept_is_the_exact_divergence(corpus, target, cached) -> None:
    live = LiveTeacher(target())
    teacher, _ = cached(live, TopKTail(k=1000, dtype="float32"))
    for batch in train_batches(corpus)[0]:
        positions = predicting_positions(batch["supervised"])
        signal, exact = teacher.signal(batch, positions), live.signal(batch, positions)
        student = torch.randn(len(positions), 40)
        torch.testing.assert_close(
            top_k_divergence(student, signal), forward_kl(student, logits_of(exact))
        )


def test_the_tail_keeps_truncated_kl_above_zero() -> None:
    """.5·ln(.5/.6) + .2·ln(.2/.3) + .3·ln(.3/.1) = 0.157."""
    p = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]])
    q = torch.tensor([[0.6, 0.3, 0.04, 0.02, 0.02, 0.02]])
    head = Head(torch.eye(6))
    codec = TopKTail(k=2, dtype="float32")
    columns = codec.encode(p.log(), head, torch.Generator())
    signal = codec.signal(codec.take(columns, torch.tensor([0])), head)
    assert isinstance(signal, TopK)
    assert top_k_divergence(q.log(), signal).item() == pytest.approx(0.157, abs=5e-4)


@pytest.mark.parametrize("proposal", [1.0, 1.7])
def test_draws_are_unbiased_after_merging_and_storing(proposal) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, student = 1.5 * torch.randn(2, 1, 12, generator=generator)
    head = Head(torch.eye(12))
    codec = Samples(draws=6, proposal_temperature=proposal, dtype="float32")
    many = logits.expand(40_000, 12)
    columns = codec.encode(many, head, generator)
    assert len(columns["ids"]) < 6 * 40_000  # some token was drawn twice
    signal = codec.signal(codec.take(columns, torch.arange(40_000)), head)
    estimates = sampled_divergence(student.expand(40_000, 12), signal)
    error = estimates.std() / 200  # sqrt(40 000)
    assert abs(estimates.mean() - forward_kl(student, logits)) < 4 * error
    mass = signal.weights.sum(-1)
    assert abs(mass.mean() - 1.0) < 4 * mass.std() / 200 + 1e-6


def test_draws_are_the_rows_own_whatever_shard_is_read_first(corpus, target, cached) -> None:
    teacher, _ = cached(LiveTeacher(target()), Samples(draws=5))
    train = train_batches(corpus)[0]
    seen = {}
    for batch in train:
        signal = teacher.signal(batch, predicting_positions(batch["supervised"]))
        rows = batch["row_index"].repeat_interleave(batch["supervised"].sum(-1))
        for row in rows.unique().tolist():
            ids = signal.ids[rows == row]
            assert torch.equal(seen.setdefault(row, ids), ids)


def test_a_batch_without_a_token_has_empty_columns(corpus, target, cached) -> None:
    """A rank with one validation batch fewer than another runs one that supervises nothing."""
    teacher, _ = cached(LiveTeacher(target()), Samples(draws=2))
    train, validation = train_batches(corpus)
    for batch in (train[0], validation[0]):
        batch = unsupervised(batch)
        signal = teacher.signal(batch, predicting_positions(batch["supervised"]))
        assert len(signal.hidden if isinstance(signal, HiddenSignal) else signal.ids) == 0


def test_validation_is_exact_whatever_the_codec(corpus, target, cached) -> None:
    teacher, _ = cached(LiveTeacher(target()), Samples(draws=2))
    batch = train_batches(corpus)[1][0]
    signal = teacher.signal(batch, predicting_positions(batch["supervised"]))
    assert isinstance(signal, HiddenSignal)


@pytest.mark.parametrize("codec", [Hidden(), TopKTail(k=4), Samples(draws=4)])
def test_a_killed_run_goes_on_and_ends_the_same(
    corpus, target, cached, tmp_path, monkeypatch, codec
) -> None:
    live = LiveTeacher(target())
    cached(live, codec, folder="whole")
    written = []

    def killed(columns, path):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(path.name)
        original(columns, path)

    original = cache.write_shard
    monkeypatch.setattr(cache, "write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        cached(live, codec, folder="parts")
    with pytest.raises(UserError, match="pipeline=cache"):
        CachedTeacher(tmp_path / "parts", codec)  # no index: not whole
    again = []
    monkeypatch.setattr(cache, "write_shard", lambda c, p: (again.append(p.name), original(c, p)))
    cached(live, codec, folder="parts")
    files = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert not set(written) & set(again)
    for name in files:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_shards_hold_whole_rows_up_to_their_size(corpus) -> None:
    layout = plan_layout(load_corpus(corpus)["train"], 12)
    # Supervised: 8 3 10 0 6 11 3 0 10 5, of rows 0 to 9 with prompts 0 1 2 3 0 1 2 2 0 1.
    assert layout.offsets.diff().tolist() == [8, 3, 10, 0, 6, 11, 3, 0, 10, 5]
    assert layout.cuts.tolist() == [0, 2, 4, 5, 6, 8, 9, 10]
    assert layout.first[:4].tolist() == [0, 0, 1, 2]


def test_what_it_takes_is_said_before_the_target_runs(target, cached, caplog, monkeypatch) -> None:
    live = LiveTeacher(target())
    monkeypatch.setattr(live, "signal", None)
    with caplog.at_level("INFO", "distill"), pytest.raises(TypeError):
        cached(live, TopKTail(k=3))
    assert "at most 20 bytes per token, 56 training tokens" in caplog.text  # 3·(4 + 2) + 2


def test_a_disk_too_small_is_refused_before_the_target_runs(target, cached, monkeypatch) -> None:
    live = LiveTeacher(target())
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: type("", (), {"free": 1000})())
    monkeypatch.setattr(live, "signal", None)
    with pytest.raises(UserError, match="signal=top_k"):
        cached(live, Hidden())


def test_draws_are_taken_where_they_lie() -> None:
    """`pipeline=codecs` takes them on the device of the target."""
    columns = {n: torch.empty(8, device="meta") for n in ("ids", "weights", "log_probs")}
    columns["counts"] = torch.empty(4, dtype=torch.int, device="meta")
    taken = Samples(draws=3).take(columns, torch.empty(5, dtype=torch.long, device="meta"))
    assert {(c.device.type, c.shape) for c in taken.values()} == {("meta", (5, 3))}


@pytest.mark.parametrize("packed_width", [None, 24])
def test_what_a_head_reads_is_kept_for_all_positions(corpus, target, cached, packed_width) -> None:
    live = LiveTeacher(target(), vocabulary_size=30, reads=(1, 2))
    teacher, _ = cached(live, Hidden())
    rows = Rows(load_corpus(corpus)["train"], "train")
    batch = rows.batch([7, 0, 5, 2], packed_width)
    positions = predicting_positions(batch["supervised"])
    ours, theirs = teacher.signal(batch, positions), live.signal(batch, positions)
    assert isinstance(ours, ReadSignal)
    assert isinstance(theirs, ReadSignal)
    real = batch["attention_mask"].bool()
    assert real.sum() > len(positions)  # the prompts' positions too
    # Kept in bfloat16, made in batches of other shapes.
    torch.testing.assert_close(ours.features[real], theirs.features[real], atol=0.02, rtol=0.02)
    kept = torch.tensor([0, 3, 4, 29])
    for one, other in zip(
        (ours.reduced(kept).log_total, ours.reduced(kept).largest),
        summarise(theirs.hidden, theirs.head),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
