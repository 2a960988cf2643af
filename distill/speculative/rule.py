"""The rule of speculative sampling: accept, reject, correct. Pure torch; the paper's p and q.

Sources: Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
Decoding", Algorithm 1; Chen et al. 2023, "Accelerating Large Language Model Decoding with
Speculative Sampling", Algorithm 2 and Theorem 1.

Shapes: B rows, K drafted tokens, V vocabulary. p is the target's distribution, q the draft's.
Probabilities are float32 or float64 (never half: a residual of rounding errors is not one).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Ruling(NamedTuple):
    """What one round decided.

    accepted [B]: how many drafts are kept, 0..K. next_token [B]: the correction, or the bonus token
    after a full acceptance. alpha [B, K]: Σ_x min(p, q) at each drafted position (the probability
    of accepting there, given that every earlier draft was accepted).
    """

    accepted: Tensor
    next_token: Tensor
    alpha: Tensor


Rule = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Ruling]
"""(drafts, q, p, uniforms, counts) -> Ruling, with the shapes of `speculative_rule`."""


def sample(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Draw one token per row by inverting the cumulative sum: [B, V], uniform [B] in [0, 1) -> [B].

    Weights need not sum to one. A token of zero weight is never drawn.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:].contiguous()
    token = torch.searchsorted(cumulative, uniform.to(torch.float64)[:, None] * total, right=True)
    # Rounding can put the threshold on the total itself: take the last token that has any weight.
    return torch.minimum(token, torch.searchsorted(cumulative, total)).squeeze(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p − q), and p itself where p == q leaves nothing: [..., V] -> [..., V].

    These are the weights of the papers' norm(max(0, p − q)); `sample` divides by their sum.
    """
    positive = (p - q).clamp_min_(0)
    return torch.where(positive.sum(-1, keepdim=True) > 0, positive, p)


def speculative_rule(
    drafts: Tensor, q: Tensor, p: Tensor, uniforms: Tensor, counts: Tensor
) -> Ruling:
    """Accept draft x with probability min(1, p(x)/q(x)); at the first rejection draw the residual.

    drafts [B, K]; q [B, K, V]; p [B, K+1, V]; uniforms [B, K+1] in [0, 1): K tests, then the final
    draw; counts [B]: how many of the K drafts are real in each row (the rest is padding).
    """
    K = drafts.shape[1]
    position = torch.arange(K, device=drafts.device)
    p_draft = p[:, :K].gather(-1, drafts[..., None]).squeeze(-1)
    q_draft = q.gather(-1, drafts[..., None]).squeeze(-1)
    # u < p/q without dividing: q(x) > 0 for a token that q drew, and u < 1 accepts all of p >= q.
    keep = (uniforms[:, :K] * q_draft < p_draft) & (position < counts[:, None])
    accepted = keep.cumprod(-1).sum(-1)

    p_next = _at(p, accepted)
    if K:
        # After a full acceptance there is no q to subtract: the bonus token comes from p.
        rejected = (accepted < counts)[:, None]
        p_next = residual(p_next, _at(q, accepted.clamp_max(K - 1)) * rejected)
    alpha = torch.minimum(p[:, :K], q).sum(-1)
    return Ruling(accepted, sample(p_next, uniforms[:, K]), alpha)


def _at(distributions: Tensor, position: Tensor) -> Tensor:
    """Each row's distribution at its own position: [B, n, V], position [B] < n -> [B, V]."""
    B, n, _ = distributions.shape
    first = torch.arange(B, device=position.device) * n
    # Rows are copied whole; indexing by two tensors would go element by element.
    return distributions.flatten(0, 1).index_select(0, first + position)


def greedy_rule(drafts: Tensor, best: Tensor, counts: Tensor) -> Ruling:
    """The same rule where p and q are one-hot (temperature 0): accept equal tokens.

    drafts [B, K]; best [B, K+1]: the target's argmax; counts [B] as above. Σ_x min(p, q) is 1 or 0.
    """
    equal = drafts == best[:, :-1]
    position = torch.arange(drafts.shape[1], device=drafts.device)
    accepted = (equal & (position < counts[:, None])).cumprod(-1).sum(-1)
    return Ruling(accepted, best.gather(1, accepted[:, None]).squeeze(1), equal.double())
