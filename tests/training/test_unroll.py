"""The unrolled head against a chain that is run token by token, and the loss made of it.

S entries of a row, W the target's width.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from distill.data.datamodule import collate, collate_packed
from distill.losses.tokens import predicting_positions
from distill.models.eagle3 import Eagle3Head, feature_layers, head_config, make_head
from distill.teacher.features import ReadSignal
from distill.teacher.live import LiveTeacher
from distill.training.objective import Objective
from distill.training.student import STEP_WEIGHT, HeadStudent, Reading
from distill.training.unroll import unroll
from tests.naive_eagle3 import unrolled
from tests.tiny import tiny_llama

KEPT = torch.tensor([0, 1, 2, 3, 5, 8, 13, 21, 22, 30])
STEPS = 3


@pytest.fixture
def target():
    return tiny_llama(0, vocab_size=32, num_hidden_layers=6).double()


@pytest.fixture
def head(target) -> Eagle3Head:
    torch.manual_seed(1)
    config = head_config(target.config, len(KEPT))
    config.initializer_range = 0.3
    return make_head(config, KEPT, target).double()


def test_every_step_is_what_a_chain_run_token_by_token_gives(head):
    S, W = 7, head.config.hidden_size
    embedded, features = torch.randn(1, S, W).double(), torch.randn(1, S, 3 * W).double()
    steps = list(unroll(head, embedded, features, torch.arange(S)[None], STEPS))
    for base in range(S - STEPS + 1):
        expected = unrolled(head, embedded[0], features[0], base, STEPS)
        for step, output in enumerate(expected):
            torch.testing.assert_close(steps[step][0, base + step], output)


def test_packed_documents_do_not_see_each_other(head):
    W = head.config.hidden_size
    embedded, features = torch.randn(1, 9, W).double(), torch.randn(1, 9, 3 * W).double()
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])
    together = list(unroll(head, embedded, features, places, STEPS))
    alone = list(unroll(head, embedded[:, 4:], features[:, 4:], places[:, 4:], STEPS))
    for step, (both, one) in enumerate(zip(together, alone, strict=True)):
        # The first `step` entries of a document belong to no chain in it.
        torch.testing.assert_close(both[:, 4 + step :], one[:, step:])


def rows() -> list[dict]:
    generator = torch.Generator().manual_seed(3)
    lengths, prompts = (9, 6, 4), (0, 3, 2)
    return [
        {"input_ids": torch.randint(0, 32, (n,), generator=generator).tolist(), "prompt_length": p}
        for n, p in zip(lengths, prompts, strict=True)
    ]


def batch(packed: bool = False) -> dict[str, Tensor]:
    if packed:
        return collate_packed(rows(), [0, 1, 2], "train", 10)
    return collate(rows(), [0, 1, 2], "train")


def taught(target, head, made: dict[str, Tensor], objective: Objective):
    """Loss and sums of a batch, by the student."""
    student = HeadStudent(head, Reading(target.get_input_embeddings().weight.detach(), STEPS), 32)
    teacher = LiveTeacher(target, reads=feature_layers(6))
    positions = predicting_positions(made["supervised"])
    signal = teacher.signal(made, positions)
    assert isinstance(signal, ReadSignal)
    # In double precision, so that the reference can be compared to it closely.
    exact = {}
    with torch.no_grad():
        found = target.model(
            **{n: made[n] for n in ("input_ids", "position_ids") if n in made},
            output_hidden_states=True,
        ).hidden_states
    exact["features"] = torch.cat([found[n] for n in feature_layers(6)], -1)
    torch.testing.assert_close(signal.features.double(), exact["features"], atol=0.05, rtol=0.02)
    signal = ReadSignal(signal.hidden, signal.head, exact["features"])
    return student(made, positions, signal, objective)


def reference(target, head) -> tuple[Tensor, dict[str, Tensor]]:
    """The same by chains of single rows, with q over all ids and p of the target's own logits."""
    total = torch.zeros((), dtype=torch.double)
    alpha, tokens = torch.zeros((), dtype=torch.double), 0
    for row in rows():
        ids = torch.tensor(row["input_ids"])
        with torch.no_grad():
            found = target(input_ids=ids[None], output_hidden_states=True)
        p = found.logits[0].softmax(-1)
        features = torch.cat([found.hidden_states[n][0] for n in feature_layers(6)], -1)
        embedded = F.embedding(ids[1:], target.get_input_embeddings().weight.detach())
        first = max(row["prompt_length"], 1) - 1
        for position in range(first, len(ids) - 1):
            for step in range(STEPS):
                base = position - 1 - step
                if base < 0:
                    continue
                output = unrolled(head, embedded, features[:-1], base, step + 1)[-1]
                q = torch.zeros(32, dtype=torch.double)
                q = q.index_put((KEPT,), (output @ head.lm_head.weight.t()).softmax(-1))
                overlap = torch.minimum(p[position], q).sum()
                total = total - STEP_WEIGHT**step * overlap.log()
                alpha, tokens = alpha + overlap.detach(), tokens + 1
    weight = sum(STEP_WEIGHT**step for step in range(STEPS))
    return total / weight, {"alpha": alpha, "tokens": torch.tensor(float(tokens))}


@pytest.mark.parametrize("packed", [False, True])
def test_loss_and_gradients_are_those_of_single_chains(target, head, packed):
    loss, sums = taught(target, head, batch(packed), Objective("acceptance", compiled=False))
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in head.named_parameters()}
    head.zero_grad()
    expected, counts = reference(target, head)
    expected.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums["alpha"].double(), counts["alpha"], rtol=1e-6, atol=1e-6)
    assert sums["tokens"] == counts["tokens"]
    for name, weight in head.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-5, atol=1e-7, msg=name)


def test_a_batch_without_a_supervised_token_reaches_every_parameter(target, head):
    student = HeadStudent(head, Reading(target.get_input_embeddings().weight.detach(), STEPS), 32)
    loss, sums = student(batch(), torch.zeros(0, dtype=torch.long), None, Objective())
    loss.backward()
    assert loss == 0
    assert sums == {}
    assert all(weight.grad is not None for weight in head.parameters())
