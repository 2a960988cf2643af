"""How sure the teacher is; the numbers by hand stand in tests/training/test_objective.py."""

import torch

from distill.losses import Head
from distill.losses.entropy import entropy, head_entropy


def test_entropy_of_a_head_by_chunks() -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(7, 4).half(), Head(torch.randn(6, 4))
    found = head_entropy(hidden, head, 0.5, chunk_size=3)
    torch.testing.assert_close(found, entropy(head.logits(hidden.float()), 0.5))
    assert head_entropy(hidden[:0], head).shape == (0,)
