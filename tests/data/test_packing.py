"""Packed rows: laid out to fit, every one once, and blind to each other in both models."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from distill.data.batching import epoch_windows, fill, lay_out
from distill.data.datamodule import collate, collate_packed
from distill.losses.tokens import predicting_positions
from distill.teacher.cached import rows_and_places
from distill.teacher.head import check_packing, last_hidden
from tests.tiny import tiny_llama

LENGTHS = np.random.default_rng(0).integers(2, 60, 300)


def test_rows_go_where_there_is_room() -> None:
    lengths = np.array([5, 4, 3, 1, 6, 2])
    # 6 | 5 | then 4 begins a third, 3 joins the 5, 2 the 6 and 1 the 4.
    assert fill(range(6), lengths, 8) == [[4, 5], [0, 2], [1, 3]]
    assert lay_out([6, 2, 5, 3, 4, 1], 8) == [[0, 1], [2, 3], [4, 5]]
    assert lay_out([2, 3, 5], 8) == [[0, 1], [2]]
    assert lay_out([2, 3, 4], 8) == [[0, 1], [2]]  # one token too many


def test_an_epoch_has_every_row_once_with_little_padding() -> None:
    windows = epoch_windows(LENGTHS, 240, 480, seed=0, epoch=0, packed_width=60)
    batches = [batch for window in windows for batch in window]
    assert sorted(row for batch in batches for row in batch) == list(range(300))
    laid = [lay_out(LENGTHS[batch].tolist(), 60) for batch in batches]
    assert max(map(len, laid)) <= 4
    slots = sum(60 * len(sequences) for sequences in laid)
    assert LENGTHS.sum() / slots > 0.93
    assert windows != epoch_windows(LENGTHS, 240, 480, seed=0, epoch=1, packed_width=60)


ROWS = [
    {"input_ids": [5, 6, 7, 8], "prompt_length": 2},
    {"input_ids": [9, 10], "prompt_length": 0},
    {"input_ids": [11, 12, 13], "prompt_length": 1},
]


def test_positions_marks_and_owners() -> None:
    batch = collate_packed(ROWS, [40, 41, 42], "train", width=6)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 10], [11, 12, 13, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 0, 0]]
    assert batch["supervised"].int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]]
    positions = predicting_positions(batch["supervised"])
    rows, places = rows_and_places(batch, positions)
    assert list(zip(rows.tolist(), places.tolist(), strict=True)) == [
        (40, 1), (40, 2), (41, 0), (42, 0), (42, 1),
    ]  # fmt: skip
    plain = collate(ROWS, [40, 41, 42])
    same = rows_and_places(plain, predicting_positions(plain["supervised"]))
    assert torch.equal(rows, same[0])
    assert torch.equal(places, same[1])


def llama(attention: str, **changes):
    return tiny_llama(initializer_range=0.3, attn_implementation=attention, **changes)


def gpt2(attention: str):
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    config._attn_implementation = attention
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [llama, gpt2])
def test_a_document_sees_itself_only(family, attention) -> None:
    model = family(attention)
    check_packing(model)
    packed = collate_packed(ROWS, [0, 1, 2], "train", width=9)
    assert packed["input_ids"].shape == (1, 9)
    changed = {**packed, "input_ids": packed["input_ids"].clone()}
    changed["input_ids"][0, :4] = torch.tensor([1, 2, 3, 4])
    with torch.no_grad():
        states, others = last_hidden(model, packed)[0], last_hidden(model, changed)[0]
        assert torch.equal(states[4:], others[4:])
        assert not torch.equal(states[:4], others[:4])
        start = 0
        for row in ROWS:
            alone = last_hidden(model, {"input_ids": torch.tensor([row["input_ids"]])})[0]
            part = states[start : start + len(alone)]
            torch.testing.assert_close(part, alone, rtol=1e-5, atol=1e-5)
            start += len(alone)


def test_a_model_that_mixes_documents_is_refused(monkeypatch) -> None:
    from distill.errors import UserError
    from distill.teacher import head

    def blind(model, batch):
        return model.base_model(input_ids=batch["input_ids"], use_cache=False).last_hidden_state

    monkeypatch.setattr(head, "last_hidden", blind)
    with pytest.raises(UserError, match=r"data\.packing=false"):
        check_packing(llama("sdpa"))
