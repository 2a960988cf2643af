"""The loss of a parallel draft against rounds that are run one by one; what dropping keeps.

T supervised tokens, V vocabulary.
"""

from collections import Counter

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.data.datamodule import collate, collate_packed
from distill.losses.fused import Signal
from distill.losses.sparse import keep_top_k
from distill.losses.tokens import predicting_positions
from distill.teacher.live import LiveTeacher
from distill.training.masked import Mask, lay_out
from distill.training.objective import Objective
from distill.training.student import STEP_WEIGHT, ParallelStudent
from tests.speculative.conftest import FAMILIES, VOCABULARY, built
from tests.tiny import tiny_llama

K, TOKEN = 4, 96
OBJECTIVE = Objective("acceptance", compiled=False)


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0, vocab_size=VOCABULARY, initializer_range=0.3).double()


def rows() -> list[dict]:
    generator = torch.Generator().manual_seed(3)
    lengths, prompts = (9, 6, 3), (0, 3, 2)
    return [
        {"input_ids": torch.randint(0, 96, (n,), generator=generator).tolist(), "prompt_length": p}
        for n, p in zip(lengths, prompts, strict=True)
    ]


def batch(packed: bool = False) -> dict[str, Tensor]:
    if packed:
        return collate_packed(rows(), [0, 1, 2], "train", 10)
    return collate(rows(), [0, 1, 2], "train")


def signal_of(target: PreTrainedModel, made: dict[str, Tensor], positions: Tensor) -> Signal:
    return LiveTeacher(target).signal(made, positions)


def taught(target, student: ParallelStudent, made: dict[str, Tensor]):
    positions = predicting_positions(made["supervised"])
    return student(made, positions, signal_of(target, made, positions), OBJECTIVE)


def reference(target, draft) -> tuple[Tensor, dict[str, float]]:
    """Every round alone: the text so far and K − 1 masks through the draft's plain forward."""
    total = torch.zeros((), dtype=torch.double)
    alpha, tokens = 0.0, 0
    for row in rows():
        ids = row["input_ids"]
        with torch.no_grad():
            p = target(input_ids=torch.tensor([ids])).logits[0].softmax(-1)
        for base in range(max(row["prompt_length"], 1) - 1, len(ids) - 1):
            read = torch.tensor([ids[: base + 1] + [TOKEN] * (K - 1)])
            q = draft(input_ids=read, use_cache=False).logits[0].softmax(-1)
            for step in range(min(K, len(ids) - 1 - base)):
                overlap = torch.minimum(p[base + step], q[base + step]).sum()
                total = total - STEP_WEIGHT**step * overlap.log()
                alpha, tokens = alpha + overlap.item(), tokens + 1
    weight = sum(STEP_WEIGHT**step for step in range(K))
    return total / weight, {"alpha": alpha, "tokens": tokens}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("packed", [False, True])
def test_loss_and_gradients_are_those_of_single_rounds(target, family, packed):
    draft = FAMILIES[family]().double()
    student = ParallelStudent(draft, Mask(TOKEN, K), VOCABULARY)  # in eval mode: nothing is dropped
    loss, sums = taught(target, student, batch(packed))
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in draft.named_parameters()}
    draft.zero_grad()
    expected, counts = reference(target, draft)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    assert sums["tokens"] == counts["tokens"]
    assert sums["alpha"].item() == pytest.approx(counts["alpha"], rel=1e-5)
    for name, weight in draft.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_eager_attention_is_masked_too(target):
    draft = FAMILIES["llama"]().double()
    draft.set_attn_implementation("eager")
    student = ParallelStudent(draft, Mask(TOKEN, K), VOCABULARY)
    loss, _ = taught(target, student, batch())
    torch.testing.assert_close(loss.double(), reference(target, draft)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_dropped_weighs_in_what_is_kept(target, packed):
    """The mean of many droppings is the loss of whole chains; step 1 is always whole."""
    draft = built("llama")
    whole, _ = taught(target, ParallelStudent(draft, Mask(TOKEN, K), VOCABULARY), batch(packed))
    student = ParallelStudent(draft, Mask(TOKEN, K, 0.5, 0.3), VOCABULARY)
    torch.manual_seed(0)
    draft.train()
    with torch.no_grad():
        losses = [taught(target, student, batch(packed))[0].item() for _ in range(300)]
    draft.eval()
    mean, error = torch.tensor(losses).mean(), torch.tensor(losses).std() / len(losses) ** 0.5
    assert abs(mean - whole.detach()) < 4 * error
    assert error < 0.02 * mean


def test_chains_are_cut_short_and_never_broken():
    """Of 4,000 bases, shares .7, .49, .343, .25, .25 reach each step, always behind the last."""
    mask = Mask(TOKEN, 6, 0.7, 0.25)
    S = 4000
    places = torch.arange(S)[None]
    torch.manual_seed(0)
    entries = lay_out(torch.arange(S - 6), places, mask, torch.rand(S - 6))
    found = Counter(entries.depth.flatten().tolist())
    for step, share in enumerate([0.7, 0.49, 0.343, 0.25, 0.25], 1):
        assert found[step] / S == pytest.approx(share, abs=0.03)
    kept = set(zip(entries.base[0].tolist(), entries.depth[0].tolist(), strict=True))
    assert all(step == 1 or (base, step - 1) in kept for base, step in kept)
    for step, (slots, told) in enumerate(zip(entries.slots, entries.told, strict=True), 1):
        base = entries.base.flatten()[slots]
        assert (entries.depth.flatten()[slots] == step).all()
        # The T-th position is T here: the entry predicts what position base + step does.
        assert (told == base + step).all()
        assert (entries.place.flatten()[slots] == base + step).all()


def test_cost_grows_little_with_the_tokens_of_a_pass():
    """PARD's setting: 8 tokens cost 3.37 positions each, not 8."""
    mask = Mask(TOKEN, 8)
    assert sum(mask.share(step) for step in range(8)) == pytest.approx(3.3731)
    assert mask.share(0) == 1


def test_other_forms_of_the_signal(target):
    made = batch()
    positions = predicting_positions(made["supervised"])
    with torch.no_grad():
        logits = target(input_ids=made["input_ids"]).logits.flatten(0, 1)[positions]
    student = ParallelStudent(built("llama"), Mask(TOKEN, K), VOCABULARY)
    objective = Objective(compiled=False)
    exact, _ = student(made, positions, signal_of(target, made, positions), objective)
    kept, _ = student(made, positions, keep_top_k(logits, VOCABULARY - 1), objective)
    torch.testing.assert_close(exact, kept, rtol=1e-3, atol=1e-3)


def test_a_batch_without_a_supervised_token_reaches_every_parameter():
    draft = FAMILIES["llama"]().train()
    student = ParallelStudent(draft, Mask(TOKEN, K), VOCABULARY)
    loss, sums = student(batch(), torch.zeros(0, dtype=torch.long), None, OBJECTIVE)
    loss.backward()
    assert loss == 0
    assert sums == {}
    assert all(weight.grad is not None for weight in draft.parameters())
