"""How sure the teacher is, per token, from whatever is known of its distribution.

Shapes: T tokens, V vocabulary, K kept tokens, N draws.
"""

import torch
from torch import Tensor

from distill.losses.divergence import expectation, log_probabilities
from distill.losses.head import Head
from distill.losses.sparse import Sampled, TopK


def entropy(teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """H(p) = −Σ p log p, in nats: [T, V] → [T]."""
    log_p = log_probabilities(teacher_logits, temperature)
    return expectation(log_p.exp(), -log_p)


def head_entropy(
    hidden: Tensor, head: Head, temperature: float = 1.0, chunk_size: int = 512
) -> Tensor:
    """The same of head(hidden), whose logits never exist for all T tokens: [T, D] → [T]."""
    hidden = hidden.to(head.weight.dtype)
    starts = range(0, max(len(hidden), 1), chunk_size)  # of no token one part, of none
    parts = [hidden[first : first + chunk_size] for first in starts]
    return torch.cat([entropy(head.logits(part), temperature) for part in parts])


def sparse_entropy(signal: TopK | Sampled) -> Tensor:
    """Of the kept tokens and the tail as one (a lower bound); of draws, unbiased: [T]."""
    if isinstance(signal, Sampled):
        return expectation(signal.weights.float(), -signal.log_probs.float())
    log_p = torch.cat([signal.log_probs, signal.log_tail.unsqueeze(-1)], -1).float()
    return expectation(log_p.exp(), -log_p)
