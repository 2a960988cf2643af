"""A parallel draft's rounds of decoding, for all positions of a batch at once and some left out.

An et al. 2025 (arXiv 2504.18583), section 3.2, "conditional drop token". A *chain* begins at a
position, its base: the round that has read the text up to there. Behind the row, entry (b, m) is
the m-th mask of the chain that began at b; it stands at position b + m and predicts what follows
that. It sees the text up to b and the chain's masks 1 … m, as in decoding.

Dropping keeps chains whole: entry (b, m) is there only if (b, m − 1) is, whose keys and values it
reads. Step 0, the plain prediction at every base, is never dropped.

Shapes: B rows, S tokens a row, T supervised positions, E entries behind a row.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Mask(NamedTuple):
    """How a parallel draft is trained.

    token: the id of every mask. steps: tokens guessed in one pass, K. retention, least: the share
    of chains that have j masks is max(retentionʲ, least).
    """

    token: int
    steps: int
    retention: float = 0.7
    least: float = 0.2

    def share(self, step: int) -> float:
        """The share of chains that reach this step; 1 for step 0."""
        return max(self.retention**step, self.least) if step else 1.0


class Entries(NamedTuple):
    """Mask entries behind the rows: base, depth and place [B, E]; a filler has base −1.

    place: the position in the document. slots: of each step from 1 on, where its entries stand in
    B·E. told: which of the T positions predicts the same token, for each of these.
    """

    base: Tensor
    depth: Tensor
    place: Tensor
    slots: list[Tensor]
    told: list[Tensor]


def lay_out(positions: Tensor, places: Tensor, mask: Mask, lots: Tensor | None = None) -> Entries:
    """The entries of all chains that begin at `positions`.

    positions: flat [T] into B·S, ascending. places: [B, S], each token's position in its document.
    lots: uniform numbers [T], by which chains are cut short; None: all stay whole. A chain ends
    where the supervised tokens of its document do.
    """
    B, S = places.shape
    flat, T = places.flatten(), len(positions)
    index = torch.full((B * S + mask.steps,), -1, dtype=torch.long, device=places.device)
    index[positions] = torch.arange(T, device=places.device)
    alive = torch.arange(T, device=places.device)  # chains that reach the step
    chains: list[Tensor] = []
    for step in range(1, mask.steps):
        bases = positions[alive]
        end = (bases + step).clamp_max(B * S - 1)
        whole = (index[bases + step] >= 0) & (end // S == bases // S)
        whole &= flat[end] == flat[bases] + step
        if lots is not None:
            whole &= lots[alive] < mask.share(step)
        alive = alive[whole]
        chains.append(alive)
    told = [index[positions[one] + step] for step, one in enumerate(chains, 1)]
    return _placed([positions[one] for one in chains], told, places)


def _placed(bases: Sequence[Tensor], told: list[Tensor], places: Tensor) -> Entries:
    """Put the entries of every step behind the rows that they belong to."""
    B, S = places.shape
    device = places.device
    sizes = [len(one) for one in bases]
    every = torch.cat([*bases, torch.zeros(0, dtype=torch.long, device=device)])
    depths = torch.repeat_interleave(
        torch.arange(1, len(sizes) + 1, device=device), torch.tensor(sizes, device=device)
    )
    rows = every // S
    held = torch.bincount(rows, minlength=B)
    E = int(held.max()) if len(every) else 0
    order = rows.argsort(stable=True)
    before = held.cumsum(0) - held
    slots = torch.empty_like(every)
    slots[order] = torch.arange(len(every), device=device) - before[rows[order]]
    slots += rows * E
    base = torch.full((B * E,), -1, dtype=torch.long, device=device)
    depth, place = torch.zeros(2, B * E, dtype=torch.long, device=device)
    base[slots], depth[slots] = every % S, depths
    place[slots] = places.flatten()[every] + depths
    shaped = (one.view(B, E) for one in (base, depth, place))
    return Entries(*shaped, slots=list(slots.split(sizes)), told=told)


def visible(documents: Tensor, places: Tensor, entries: Entries, window: int | None) -> Tensor:
    """What the row's tokens and its entries see: bool [B, 1, S + E, S + E].

    documents: [B, S], alike for the tokens of one document. places: [B, S]. window: positions that
    a sliding-window layer sees, its own included.
    """
    B, S = documents.shape
    key = torch.arange(S, device=documents.device)
    text = (documents[:, :, None] == documents[:, None]) & (key <= key[:, None])
    base, depth = entries.base, entries.depth
    owner = documents.gather(1, base.clamp_min(0))
    of_text = (owner[:, :, None] == documents[:, None]) & (key <= base[:, :, None])
    of_chain = (base[:, :, None] == base[:, None]) & (depth[:, None] <= depth[:, :, None])
    none = text.new_zeros(B, S, base.shape[1])
    seen = torch.cat([torch.cat([text, none], 2), torch.cat([of_text, of_chain], 2)], 1)
    if window is not None:
        stands = torch.cat([places, entries.place], 1)
        seen &= stands[:, :, None] - stands[:, None] < window
    return seen[:, None]
