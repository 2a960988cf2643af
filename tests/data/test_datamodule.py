from itertools import islice

import lightning
import numpy as np
import pytest
import torch

from distill.data.batching import epoch_windows, join, pack, rank_windows
from distill.data.corpus import SPLITS, save_corpus
from distill.data.datamodule import CorpusDataModule, collate
from distill.data.encode import Example
from distill.errors import UserError

LENGTHS = np.random.default_rng(0).integers(2, 60, 500)
EOS = 3


def examples(lengths, prompt_length=1):
    return [
        Example(f"r{i}", "d", np.full(length, EOS, dtype=np.int32), prompt_length)
        for i, length in enumerate(lengths)
    ]


@pytest.fixture
def module(tmp_path):
    def make(train=LENGTHS, validation=LENGTHS[:40], prompt_length=1, batch=128, step=300):
        parts = (examples(train, prompt_length), examples(validation, 0), [])
        save_corpus(dict(zip(SPLITS, parts, strict=True)), tmp_path)
        return CorpusDataModule(tmp_path, tokens_per_batch=batch, tokens_per_step=step, seed=5)

    return make


def rows_of(window):
    return [row for batch in window for row in batch["row_index"].tolist()]


def test_masks_come_from_lengths_alone():
    """EOS-PAD: the pad id (0) and EOS are real tokens of these rows."""
    rows = [
        {"input_ids": [5, 0, EOS, EOS], "prompt_length": 1},
        {"input_ids": [7, EOS], "prompt_length": 0},
    ]
    batch = collate(rows, [4, 9])
    assert batch["supervised"].tolist() == [[False, True, True, True], [False, True, False, False]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["input_ids"][0].tolist() == [5, 0, EOS, EOS]
    assert batch["row_index"].tolist() == [4, 9]


def test_more_padding_never_changes_what_is_learnt():
    """EOS-PAD."""
    row = {"input_ids": [5, 0, EOS], "prompt_length": 1}
    alone = collate([row], [0])
    padded = collate([row, {"input_ids": [1] * 40, "prompt_length": 1}], [0, 1])
    for name in ("input_ids", "attention_mask", "supervised"):
        assert torch.equal(alone[name][0], padded[name][0, :3])
    assert not padded["supervised"][0, 3:].any()


@pytest.mark.parametrize(("prompt_length", "where"), [(0, [1, 2]), (1, [1, 2]), (2, [2])])
def test_the_prompt_is_never_supervised_and_one_token_still_is(prompt_length, where):
    """KD-SHIFT: supervised are the tokens predicted; the first has nothing before it."""
    batch = collate([{"input_ids": [4, 5, 2], "prompt_length": prompt_length}], [0])
    assert batch["supervised"][0].nonzero().flatten().tolist() == where


def test_micro_batches_fit_and_keep_order():
    assert pack([0, 1, 2, 3], np.array([4, 4, 6, 1]), 12) == [[0, 1], [2, 3]]
    assert pack([], LENGTHS, 12) == []


def test_window_holds_at_most_its_tokens_and_at_least_one_batch():
    lengths = np.array([5, 5, 5, 11])
    assert join([[0], [1], [2], [3]], lengths, 10) == [[[0], [1]], [[2]], [[3]]]


def test_an_epoch_has_every_row_once_in_batches_that_fit():
    windows = epoch_windows(LENGTHS, 128, 300, seed=1, epoch=0)
    batches = [batch for window in windows for batch in window]
    assert sorted(row for batch in batches for row in batch) == list(range(500))
    assert all(len(b) * LENGTHS[b].max() <= 128 for b in batches)
    assert all(sum(LENGTHS[batch].sum() for batch in w) <= 300 for w in windows)
    padded = sum(len(b) * LENGTHS[b].max() for b in batches)
    assert LENGTHS.sum() / padded > 0.9
    assert windows == epoch_windows(LENGTHS, 128, 300, seed=1, epoch=0)
    assert windows != epoch_windows(LENGTHS, 128, 300, seed=1, epoch=1)
    assert windows != epoch_windows(LENGTHS, 128, 300, seed=2, epoch=0)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_share_nothing_and_cover_each_epoch_once(world):
    epoch = [
        row
        for w in epoch_windows(LENGTHS, 128, 300, seed=0, epoch=0)
        for batch in w
        for row in batch
    ]
    steps = 200
    streams = [
        list(islice(rank_windows(LENGTHS, 128, 300, 0, rank=rank, world=world), steps))
        for rank in range(world)
    ]
    merged = [
        row for step in zip(*streams, strict=True) for w in step for batch in w for row in batch
    ]
    assert merged[:500] == epoch
    assert sorted(merged[500:1000]) == list(range(500))


@pytest.mark.parametrize("position", [0, 7, 90])
def test_going_on_from_a_position_gives_the_same_rows(position):
    whole = list(islice(rank_windows(LENGTHS, 128, 300, 0, rank=1, world=2), position + 5))
    rest = rank_windows(LENGTHS, 128, 300, 0, position=position, rank=1, world=2)
    assert list(islice(rest, 5)) == whole[position:]


def test_rows_with_nothing_to_learn_are_left_out(module):
    subject = module(train=[1, 5, 5, 9], prompt_length=5)
    subject.setup()
    assert subject.train_supervised_tokens == 4
    first = next(iter(subject.train_dataloader()))
    assert rows_of(first) == [3]


def test_corpus_of_bare_prompts_is_refused(module):
    with pytest.raises(UserError, match=r"generate.enabled"):
        module(prompt_length=60).setup()


def test_row_longer_than_a_micro_batch_is_refused(module):
    with pytest.raises(UserError, match="59 tokens, but a micro-batch holds 40"):
        module(batch=40).setup()


def test_validation_has_each_row_once_over_the_ranks(module, monkeypatch):
    seen, sizes = [], []
    for rank in range(3):
        subject = module()
        monkeypatch.setattr(CorpusDataModule, "rank", rank)
        monkeypatch.setattr(CorpusDataModule, "world", 3)
        subject.setup()
        batches = list(subject.val_dataloader())
        sizes.append(len(batches))
        seen += [row for b in batches if b["supervised"].any() for row in b["row_index"].tolist()]
    assert sorted(seen) == list(range(40))
    assert len(set(sizes)) == 1


class Recorder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[list[int]] = []

    def training_step(self, window, _):
        self.seen.append(rows_of(window))

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(datamodule, batches, checkpoint=None):
    recorder = Recorder()
    trainer = lightning.Trainer(
        max_epochs=1,
        limit_train_batches=batches,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        val_check_interval=4,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=1,
    )
    if checkpoint is not None:
        datamodule.trainer = trainer
        datamodule.load_state_dict(torch.load(checkpoint)["CorpusDataModule"])
    trainer.fit(recorder, datamodule=datamodule)
    return recorder, trainer


@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*")
def test_lightning_counts_the_windows_used_and_resumes_with_the_same_rows(module, tmp_path):
    whole, _ = fit(module(), 10)
    first = module()
    begun, trainer = fit(first, 7)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    assert first.state_dict()["position"] == 7
    rest, _ = fit(module(), 3, tmp_path / "half.ckpt")
    assert begun.seen + rest.seen == whole.seen
