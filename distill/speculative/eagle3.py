"""An EAGLE-3 head drafts from the states that the target's own passes leave behind.

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test" (arXiv 2503.01840); `distill.models.eagle3` has the weights and their form.

A row of n tokens has true entries 0 … n − 2: the target has read position n − 2, and token n − 1 is
known. The newest of them drafts token n; the head's own states then draft on, as entries that are
rolled back behind the round, because true ones take their place.

Shapes: B rows, S new entries, K drafted tokens, v reduced vocabulary, V vocabulary, H width of the
target's hidden states.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from distill.models.eagle3 import Eagle3Head
from distill.speculative.architecture import context_limit
from distill.speculative.cache import RaggedCache
from distill.speculative.cached_model import last_of, padded
from distill.speculative.drafters import ChainDrafter, LiveRows
from distill.speculative.eagle3_forward import Eagle3Forward, Tip


class Eagle3Drafter(ChainDrafter):
    """A head, with the embedding [V, H] of its target and the three layers that it reads after."""

    def __init__(
        self,
        head: Eagle3Head,
        embedding: Tensor,
        reads: tuple[int, int, int],
        cache_type: type[RaggedCache] = RaggedCache,
    ):
        self.model = head
        self.reads = reads
        self.embedding = embedding
        self._cache_type = cache_type
        self._limit = context_limit(head)
        self._build()

    def _build(self) -> None:
        self._device, self._dtype = self.model.device, self.model.dtype
        self._forward = Eagle3Forward(self.model, self.embedding)
        self._cache = self._cache_type(1, self._device, fixed=self._device.type == "cuda")

    @property
    def head_size(self) -> int:
        return self.model.config.vocab_size

    def room(self, length: int) -> int:
        # A row of one token has no entry yet. The last draft makes none, so that k drafts behind
        # n tokens are made by n + k − 2 entries.
        return max(0, self._limit - length + 2) if length > 1 else 0

    def prefill(self, batch: LiveRows) -> None:
        self._live = batch
        if (self._device, self._dtype) != (self.model.device, self.model.dtype):
            self._build()
        self._forward.refresh()
        self._cache.reset(len(batch.contexts))
        self._cache.reserve(min(batch.longest, self._limit))
        kept = self.model.kept
        # The ids ascend, so that those which both models share come first.
        self._kept = kept[kept < batch.vocabulary]
        self._features: Tensor | None = None
        self._tip: Tip | None = None

    def read(self, states: Tensor) -> None:
        """Keep the states until their tokens are known: for the prompts' own they are already."""
        self._catch_up()
        self._features = states
        self._catch_up()

    def _catch_up(self) -> None:
        """Make the true entries of the kept states whose following tokens are known."""
        if self._features is None:
            return
        S, lengths, contexts = self._features.shape[1], self._cache.lengths, self._live.contexts
        counts = [
            max(0, min(len(tokens) - 1 - length, S)) if self.room(len(tokens)) else 0
            for tokens, length in zip(contexts, lengths, strict=True)
        ]
        width = max(counts)
        if not width:
            return
        tokens = padded(
            [
                tokens[length + 1 : length + 1 + count]
                for tokens, length, count in zip(contexts, lengths, counts, strict=True)
            ],
            self._device,
        )
        last = last_of(counts, self._device)
        tip = self._forward.true_entries(tokens, self._features[:, :width], last, self._cache)
        self._cache.advance(counts)
        if self._tip is not None and not all(counts):
            grown = torch.tensor(counts, device=self._device).bool()[:, None, None]
            tip = Tip(*(torch.where(grown, *pair) for pair in zip(tip, self._tip, strict=True)))
        self._tip, self._features = tip, None

    def _first(self) -> Tensor:
        self._catch_up()
        self._true = list(self._cache.lengths)
        self._step = [int(self.room(len(tokens)) > 0) for tokens in self._live.contexts]
        return self._logits()

    def _next(self, tokens: Tensor) -> Tensor:
        assert self._tip is not None
        self._tip = self._forward.own_entry(tokens[:, -1:], self._tip.state, self._cache)
        self._cache.advance(self._step)
        return self._logits()

    @property
    def _narrow(self) -> bool:
        """Whether ids are drawn among the head's own: there is no law to make of the others."""
        return self._live.distribution.of_logits_only

    def _logits(self) -> Tensor:
        assert self._tip is not None, "a row has room, so it has an entry"
        logits = self._tip.logits[..., : len(self._kept)]
        if self._narrow:
            return logits
        wide = logits.new_full((*logits.shape[:2], self._live.vocabulary), -torch.inf)
        return wide.index_copy_(-1, self._kept, logits)

    def _names(self, own: Tensor) -> Tensor:
        return self._kept[own] if self._narrow else own

    def _spread(self, q: Tensor) -> Tensor:
        if not self._narrow:
            return q
        wide = q.new_zeros((*q.shape[:2], self._live.vocabulary))
        return wide.index_copy_(-1, self._kept, q)

    def commit(self, accepted: Sequence[int]) -> None:
        # What was drafted from own states goes; the target's states for it have just been read.
        self._cache.rollback(self._true)

    def keep(self, rows: Sequence[int]) -> None:
        self._cache.keep(rows)
        index = torch.tensor(rows, device=self._device)
        if self._features is not None:
            self._features = self._features.index_select(0, index)
        if self._tip is not None:
            self._tip = Tip(*(values.index_select(0, index) for values in self._tip))
