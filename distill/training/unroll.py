"""An EAGLE-3 head run as it will be while decoding, for all positions of a batch at once.

Li et al. 2025 (arXiv 2503.01840), section 3.1, "training-time test": the head first reads the
target's features, then its own outputs in their place, as in a round of several drafts.

Shapes: B rows, S entries, W the target's width, H query heads, G key/value heads, D head width.

In step j the query of entry t belongs to the chain that began at entry t − j. Decoding shows it
the true entries up to there and the chain's own entries behind: of step 0 the keys up to t − j, and
of every step m from 1 to j the key of entry t − j + m alone.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.models.eagle3 import Eagle3Head


def unroll(
    head: Eagle3Head, embedded: Tensor, features: Tensor, places: Tensor, steps: int
) -> Iterator[Tensor]:
    """The normed output [B, S, W] of every step, which the head's output rows read.

    embedded: of the token behind each entry's position, [B, S, W]. features: [B, S, 3W]. places:
    [B or 1, S], an entry's position in its document; a document begins where they do not rise by 1.
    """
    state = head.fuse(features)
    cos, sin = head.rotary(embedded, places)
    documents = documents_of(places)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(steps):
        q, k, v = head.midlayer.project(embedded, state, cos, sin)
        keys.append(k)
        values.append(v)
        attended = F.scaled_dot_product_attention(
            q, torch.cat(keys, 2), torch.cat(values, 2), visible(documents, step), enable_gqa=True
        )
        out = head.midlayer.finish(state, attended)
        yield head.norm(out)
        # The next entry reads this output as its features. What moves into a row's first entry
        # belongs to no chain and is never scored.
        state = out.roll(1, 1)


def visible(documents: Tensor, step: int) -> Tensor:
    """Which keys of steps 0 … `step` each query sees: bool [B or 1, 1, S, (step + 1)·S].

    documents: [B or 1, S], alike for the entries of one document.
    """
    S = documents.shape[1]
    query = torch.arange(S, device=documents.device)[:, None]
    key = torch.arange(S, device=documents.device)[None]
    own = [key == query - step + m for m in range(1, step + 1)]
    same = documents[:, :, None] == documents[:, None, :]
    seen = torch.cat([same & (key <= query - step), *(same & one for one in own)], -1)
    # A chain that would have begun before its document sees itself alone: a row of a softmax that
    # sees nothing is not a number.
    alone = seen.new_zeros(seen.shape)
    alone[..., torch.arange(S), step * S + torch.arange(S)] = True
    return (seen | alone)[:, None]


def documents_of(places: Tensor) -> Tensor:
    """A number for each entry's document: [B or 1, S]."""
    starts = torch.ones_like(places, dtype=torch.bool)
    starts[:, 1:] = places[:, 1:] != places[:, :-1] + 1
    return starts.cumsum(-1)
