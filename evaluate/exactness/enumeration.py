"""The law that a speculative rule emits, measured branch by branch without restating the rule.

Every draft, every accept or reject branch and every final token is visited. How likely a branch is
comes from the rule itself: it is monotone in each uniform number it reads, so bisection finds where
it turns.

Shapes: R rows (all V^K drafts), K drafted tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distill.speculative.rule import Rule, Ruling

BISECTIONS = 56
LAST = 1 - 2**-53
"""The largest uniform number there is."""


def emitted_law(rule: Rule, p: Sequence[Tensor], q: Sequence[Tensor]) -> Tensor:
    """The law of the first K+1 tokens, [V]^(K+1), if the target goes on after one round of `rule`.

    p[i], i = 0..K, and q[i], i < K, are float64 tables [V]^(i+1): the law of token i after each
    prefix.
    """
    drafts, p_rows, q_rows = _rows(p, q)
    weight = torch.ones(len(drafts), dtype=torch.float64)
    for i in range(drafts.shape[1]):
        weight = weight * q_rows[:, i].gather(1, drafts[:, i : i + 1])[:, 0]
    K = drafts.shape[1]
    law = torch.zeros((), dtype=torch.float64)
    for n in range(K + 1):
        accept = _acceptance(rule, drafts, q_rows, p_rows, n) if n < K else torch.zeros_like(weight)
        ended = (weight * (1 - accept))[:, None] * _final(rule, drafts, q_rows, p_rows, n)
        law = _followed(law, p[n]) + _by_prefix(ended, drafts, n)
        weight = weight * accept
    return law


def target_law(p: Sequence[Tensor]) -> Tensor:
    """What the law has to be: the product of the target's conditionals, [V]^(K+1)."""
    law = torch.ones((), dtype=torch.float64)
    for table in p:
        law = law[..., None] * table
    return law


def _followed(law: Tensor, table: Tensor) -> Tensor:
    """Rounds that ended earlier go on with the target's own next token."""
    return law[..., None] * table


def _rows(p: Sequence[Tensor], q: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """All drafts [R, K] with the distributions along them: p [R, K+1, V], q [R, K, V]."""
    V, K = p[0].shape[-1], len(q)
    drafts = torch.cartesian_prod(*[torch.arange(V)] * K).view(-1, K)

    def along(tables: Sequence[Tensor]) -> Tensor:
        rows = [table[tuple(drafts[:, :i].T)] for i, table in enumerate(tables)]
        return torch.stack([row.expand(len(drafts), V) for row in rows], dim=1)

    return drafts, along(p), along(q)


def _acceptance(rule: Rule, drafts: Tensor, q: Tensor, p: Tensor, n: int) -> Tensor:
    """[R]: chance that draft n is accepted, the ones before it having been."""

    def accepts(u: Tensor) -> Tensor:
        uniforms = torch.zeros(len(drafts), drafts.shape[1] + 1, dtype=torch.float64)
        uniforms[:, n] = u
        return _judge(rule, drafts, q, p, uniforms).accepted > n

    return _turning_point(accepts, len(drafts))


def _final(rule: Rule, drafts: Tensor, q: Tensor, p: Tensor, n: int) -> Tensor:
    """[R, V]: law of the token that ends a round of n accepted drafts (any, if none can end so)."""
    R, V, K = len(drafts), p.shape[-1], drafts.shape[1]
    bound = torch.arange(V - 1).repeat(R)  # every row once for each token but the last
    drafts, q, p = (rows.repeat_interleave(V - 1, dim=0) for rows in (drafts, q, p))
    uniforms = torch.zeros(len(drafts), K + 1, dtype=torch.float64)
    if n < K:
        uniforms[:, n] = LAST

    def at_most(u: Tensor) -> Tensor:
        uniforms[:, K] = u
        return _judge(rule, drafts, q, p, uniforms).next_token <= bound

    cumulative = _turning_point(at_most, len(drafts)).view(R, V - 1)
    edges = torch.cat([torch.zeros(R, 1), cumulative, torch.ones(R, 1)], dim=1)
    return edges.diff(dim=1)


def _judge(rule: Rule, drafts: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> Ruling:
    counts = torch.full((len(drafts),), drafts.shape[1])
    return rule(drafts, q, p, uniforms, counts)


def _turning_point(holds: Callable[[Tensor], Tensor], rows: int) -> Tensor:
    """[R]: the share of [0, 1) where `holds` is true, if it is true up to a point."""
    low, high = torch.zeros(rows, dtype=torch.float64), torch.ones(rows, dtype=torch.float64)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = torch.where(true, middle, low), torch.where(true, high, middle)
    # Bisection ends within 2^-56 of a bound; the bounds themselves are exact.
    low = torch.where(holds(torch.full_like(low, LAST)), torch.ones_like(low), low)
    return torch.where(holds(torch.zeros_like(low)), low, torch.zeros_like(low))


def _by_prefix(ended: Tensor, drafts: Tensor, n: int) -> Tensor:
    """Sum rows [R, V] that share their first n drafts: [V]^(n+1)."""
    V = ended.shape[1]
    prefix = torch.zeros(len(drafts), dtype=torch.long)
    for i in range(n):
        prefix = prefix * V + drafts[:, i]
    total = torch.zeros(V**n, V, dtype=torch.float64).index_add_(0, prefix, ended)
    return total.view([V] * (n + 1))
