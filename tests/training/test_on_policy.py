"""The draft's own answers in place of a share of the rows, the same after a restart."""

from pathlib import Path

import pytest
import torch

from distill.data.datamodule import collate
from distill.models.draft import load_draft
from distill.speculative.decode import decode
from distill.speculative.matmul import CACHE_LINE
from distill.speculative.sampling import Sampling
from distill.training import on_policy
from distill.training.config import TrainerConfig
from distill.training.on_policy import OnPolicy

EOS = 7


def rows(count: int = 4) -> dict[str, torch.Tensor]:
    """Even rows have a prompt of 3 ids; odd ones are all answer. Lengths 10, 8, 10, 8."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for n in range(count):
        ids = torch.randint(8, 96, (10 - 2 * (n % 2),), generator=generator)
        found.append({"input_ids": ids, "prompt_length": 3 * (1 - n % 2)})
    return collate(found, list(range(count)))


def policy(share: float = 1.0, **changes) -> OnPolicy:
    settings = {"prompt_tokens": 5, "eos_token_ids": (EOS,), "vocabulary_size": 96} | changes
    return OnPolicy(share, **settings)


def test_answers_are_the_drafts_and_marks_follow_them(tiny) -> None:
    draft, batch = tiny.llama(16, seed=1), rows()
    (fresh,) = policy().window(draft, [batch], 3)
    starts, lengths = [3, 5, 3, 5], [10, 8, 10, 8]
    for line, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        prompt = batch["input_ids"][line, :start]
        assert torch.equal(fresh["input_ids"][line, :start], prompt)
        (answer,) = decode(
            draft,
            [prompt.tolist()],
            sampling=Sampling(temperature=1.0),
            max_new_tokens=length - start,
            eos_token_ids=(EOS,),
            row_ids=[policy()._stream(3, line)],
        ).tokens
        end = start + len(answer)
        assert fresh["input_ids"][line, start:end].tolist() == answer
        assert fresh["supervised"][line].nonzero().flatten().tolist() == list(range(start, end))
        assert fresh["attention_mask"][line].sum() == end
    assert not torch.equal(fresh["input_ids"], batch["input_ids"])


def test_an_answer_that_ends_early_supervises_its_end_and_no_more(tiny) -> None:
    draft = tiny.llama(16, seed=1, tie_word_embeddings=False)
    with torch.no_grad():
        draft.model.norm.weight.zero_()  # all ids alike: an end comes soon
    every = tuple(range(0, 96, 2))
    (fresh,) = policy(eos_token_ids=every).window(draft, [rows(8)], 0)
    for line in range(8):
        marked = fresh["supervised"][line].nonzero().flatten()
        ends = [int(i) for i in marked if int(fresh["input_ids"][line, i]) in every]
        assert len(ends) <= 1
        assert not ends or ends[0] == int(marked[-1])
        assert not fresh["input_ids"][line, int(marked[-1]) + 1 :].any()
        assert fresh["attention_mask"][line].sum() == int(marked[-1]) + 1


def test_share_of_rows_by_lot(tiny) -> None:
    draft, batch = tiny.llama(16, seed=1), rows(40)
    (none,) = policy(0.0).window(draft, [batch], 0)
    assert torch.equal(none["input_ids"], batch["input_ids"])
    (some,), (other,) = (policy(0.3).window(draft, [batch], n) for n in (0, 1))
    changed = [(x["input_ids"] != batch["input_ids"]).any(-1) for x in (some, other)]
    assert 5 <= changed[0].sum() <= 20
    assert not torch.equal(changed[0], changed[1])


def test_an_answer_is_of_its_window_and_row_alone(tiny) -> None:
    """In the next window it is another; after another seed, or beside other rows, the same."""
    draft, batch = tiny.llama(16, seed=1), rows()
    torch.manual_seed(1)
    (fresh,) = policy().window(draft, [batch], 3)
    torch.manual_seed(2)
    last = {name: value[2:3] if value.ndim else value for name, value in batch.items()}
    (alone,) = policy().window(draft, [last], 3)
    (later,) = policy().window(draft, [batch], 4)
    assert torch.equal(alone["input_ids"][0], fresh["input_ids"][2])
    assert all((later["input_ids"] != fresh["input_ids"]).any(-1))


def test_the_draft_answers_with_the_weights_it_has_now(tiny) -> None:
    draft, batch = tiny.llama(16, seed=1), rows()
    policy().window(draft, [batch], 0)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.mul_(-0.7)
    (after,) = policy().window(draft, [batch], 0)
    other = tiny.llama(16, seed=2)
    other.load_state_dict(draft.state_dict())
    (expected,) = policy().window(other, [batch], 0)
    assert torch.equal(after["input_ids"], expected["input_ids"])


def test_what_is_compiled_for_training_decodes_eagerly(tiny) -> None:
    """The model is of no family that `LlamaForward` runs: those never call the blocks."""
    target, traced = tiny.llama(32, seed=0, hidden_act="gelu"), []

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    target.model.layers[0].compile(backend=backend)
    policy(target=target).window(tiny.llama(16, seed=1), [rows()], 0)
    assert not traced


def test_training_goes_on_bit_for_bit(tiny, tmp_path, monkeypatch) -> None:
    config = TrainerConfig(
        accelerator="cpu", precision="32-true", checkpoints=2, resume_every_seconds=0.0
    )

    resumed = []

    class Stopped(tiny.Windows):  # a checkpoint knows the data module by its class
        def on_before_batch_transfer(self, batch, dataloader_idx):
            if self.position == 5 and not resumed:
                raise InterruptedError
            return super().on_before_batch_transfer(batch, dataloader_idx)

    def train(name, datamodule):
        return tiny.train(
            tmp_path / name,
            monkeypatch,
            on_policy=policy(0.5, prompt_tokens=2),
            datamodule=datamodule,
            trainer=config,
        )[0]

    whole = train("whole", tiny.Windows())
    plain = tiny.train(tmp_path / "plain", monkeypatch, trainer=config)[0]
    ends = [torch.load(Path(run["candidates"][-1]) / "weights.pt") for run in (whole, plain)]
    assert any(not torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    with pytest.raises(InterruptedError):
        train("parts", Stopped())
    resumed.append(True)
    torch.manual_seed(5)
    parts = train("parts", Stopped())
    assert parts["train_tokens"] == whole["train_tokens"]
    for one, two in zip(whole["candidates"], parts["candidates"], strict=True):
        first, second = (torch.load(Path(path) / "weights.pt") for path in (one, two))
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("pair", [False, True])
def test_a_draft_from_a_folder_learns_from_its_own_answers(
    tiny, tmp_path, monkeypatch, pair
) -> None:
    """Safetensors maps weights past a cache line's start: the engine moves such, and they train."""
    folder = tmp_path / "draft"
    tiny.llama(16, seed=1).save_pretrained(folder)
    draft = load_draft(folder, dtype=torch.float32, device="cpu")
    assert any(parameter.data_ptr() % CACHE_LINE for parameter in draft.parameters())
    target = tiny.llama(32, seed=0) if pair else None
    before = [parameter.detach().clone() for parameter in draft.parameters()]
    result, _, _ = tiny.train(
        tmp_path / "run",
        monkeypatch,
        tokens=1,
        draft=draft,
        on_policy=policy(prompt_tokens=2, target=target),
    )
    assert result["steps"] == 1
    assert not any(torch.equal(a, b) for a, b in zip(before, draft.parameters(), strict=True))
    assert not any(parameter.is_inference() for parameter in draft.parameters())


def test_the_pair_writes_by_the_targets_law_with_the_drafts_help(tiny, monkeypatch) -> None:
    """A target that is sure of every token leaves the law no choice: its own greedy text."""
    target, draft, batch = tiny.llama(32, seed=0), tiny.llama(16, seed=1), rows()
    with torch.no_grad():
        target.model.norm.weight.mul_(1e4)
    draft.train()
    outputs = []

    def recorded(*arguments, **settings):
        outputs.append(decode(*arguments, **settings))
        return outputs[-1]

    monkeypatch.setattr(on_policy, "decode", recorded)
    (fresh,) = policy(target=target).window(draft, [batch], 3)
    (alone,) = policy().window(draft, [batch], 3)
    for line, (start, length) in enumerate(zip([3, 5, 3, 5], [10, 8, 10, 8], strict=True)):
        (greedy,) = decode(
            target,
            [batch["input_ids"][line, :start].tolist()],
            sampling=Sampling(temperature=0.0),
            max_new_tokens=length - start,
            eos_token_ids=(EOS,),
        ).tokens
        end = start + len(greedy)
        assert fresh["input_ids"][line, start:end].tolist() == greedy
        assert fresh["supervised"][line].nonzero().flatten().tolist() == list(range(start, end))
    assert not torch.equal(fresh["input_ids"], alone["input_ids"])
    assert [output.stats.drafted > 0 for output in outputs] == [True, False]
    assert draft.training
    assert all(parameter.requires_grad for parameter in draft.parameters())


def test_the_pairs_text_has_the_targets_law(tiny) -> None:
    """Its first token over 2000 rows, against the probabilities of the target: χ² by groups."""
    target, draft = tiny.llama(32, seed=0).eval(), tiny.llama(16, seed=1)
    count = 2000
    row = {"input_ids": torch.tensor([9, 8, 9, 8]), "prompt_length": 3}
    batch = collate([row] * count, list(range(count)))
    (fresh,) = policy(target=target).window(draft, [batch], 0)
    with torch.no_grad():
        p = target(row["input_ids"][None, :3]).logits[0, -1].softmax(-1)
    order = p.argsort(descending=True)
    groups = torch.arange(96) * 8 // 96
    mass = torch.zeros(8).index_add_(0, groups, p[order])
    rank = torch.empty(96, dtype=torch.long)
    rank[order] = groups
    seen = torch.bincount(rank[fresh["input_ids"][:, 3]], minlength=8)
    kept = mass * count >= 5
    expected = mass[kept] * count
    assert ((seen[kept] - expected) ** 2 / expected).sum() < 30  # p < 1e-4 beyond, 7 degrees
