"""Drafters guess the next tokens and say with which probability they drew them.

Shapes: B rows, K drafted tokens, V vocabulary, H width of the target's hidden states.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.speculative.cache import RaggedCache
from distill.speculative.cached_model import CachedModel
from distill.speculative.processors import Distribution
from distill.speculative.rule import sample

KeepGoing = Callable[[Tensor], bool]
"""Told after each drafted token which probability [B] the draft gave it; False ends the round."""

M = TypeVar("M", bound=nn.Module)


@dataclass
class LiveRows:
    """The rows still being decoded, shared by loop and drafter; the loop appends what it commits.

    contexts: every row's tokens, prompt and output. uniforms [B, K]: this round's random numbers
    for drafting (unused by a greedy batch). vocabulary: ids that target and draft share, V.
    longest: the most positions that a row can come to occupy, drafts included.
    """

    contexts: list[list[int]]
    distribution: Distribution
    vocabulary: int
    longest: int
    uniforms: Tensor


class Proposal(NamedTuple):
    """tokens [B, K] and the q [B, K, V] that drew them; q is None where it is one-hot on them.

    counts: how many of its K tokens each row really drafted; None means all.
    """

    tokens: Tensor
    q: Tensor | None
    counts: list[int] | None = None


class Drafter(Protocol):
    """Guesses during one `decode` call. The rule never knows which kind of drafter it judges."""

    @property
    def model(self) -> PreTrainedModel | None:
        """The model whose weights are used (put into eval mode while decoding), if any."""
        ...

    @property
    def head_size(self) -> int | None:
        """Number of ids of its vocabulary; None where it can only repeat what a row has."""
        ...

    @property
    def reads(self) -> tuple[int, ...]:
        """After which of the target's decoder layers it reads the hidden states.

        The number of all layers means what the target's head reads, behind the final norm.
        """
        ...

    def room(self, length: int) -> int:
        """How many tokens it can draft behind a context of `length` tokens."""
        ...

    def prefill(self, batch: LiveRows) -> None:
        """Start over on these rows, before the target reads their prompts."""
        ...

    def read(self, states: Tensor) -> None:
        """Take the target's states [B, S, n·H] at the S positions that it has just read.

        It comes for every chunk of the prompts, where the last tokens are not among them and
        shorter rows are padded, and in each round before `commit`, for the last committed token
        and the drafts. The tensor may be overwritten by the target's next pass of this width.
        Nothing comes to a drafter whose `reads` is empty.
        """
        ...

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        """Draft k tokens for every row.

        `keep_going`, where given, may end the proposal early. Rows without room are padding.
        """
        ...

    def commit(self, accepted: Sequence[int]) -> None:
        """Row b keeps accepted[b] drafts; its context has grown by them and one more token."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        ...


class ChainDrafter(ABC):
    """Drafts one token after another, each from logits over v ids of its own: [B, 1, v]."""

    _live: LiveRows

    @abstractmethod
    def _first(self) -> Tensor:
        """Logits of the first draft, behind the contexts."""

    @abstractmethod
    def _next(self, tokens: Tensor) -> Tensor:
        """Logits behind the drafts [B, j ≥ 1], of which the last has not been read."""

    def _names(self, own: Tensor) -> Tensor:
        """The target's ids of these ids of its own, [B, 1]."""
        return own

    def _spread(self, q: Tensor) -> Tensor:
        """The probabilities [B, K, v] of its own ids as those of the target's: [B, K, V]."""
        return q

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        contexts = self._live.contexts
        logits = self._first()
        tokens = torch.zeros((len(contexts), 0), dtype=torch.long, device=logits.device)
        probabilities: list[Tensor] = []
        for j in range(k):
            if j:
                logits = self._next(tokens)
            own, q = self._draw(logits, tokens, j)
            tokens = torch.cat((tokens, self._names(own)), 1)
            if q is not None:
                probabilities.append(q)
            if keep_going is not None and not keep_going(self._confidence(logits, own, q)):
                break
        q = self._spread(torch.cat(probabilities, 1)) if probabilities else None
        return Proposal(tokens, q)

    def _draw(self, logits: Tensor, drafts: Tensor, j: int) -> tuple[Tensor, Tensor | None]:
        """One id [B, 1] per row from logits [B, 1, v]; q [B, 1, v] unless all are greedy."""
        contexts, distribution = self._live.contexts, self._live.distribution
        if distribution.greedy:
            return distribution.best(logits, contexts, drafts, first=j), None
        q = distribution(logits, contexts, drafts, first=j)
        return sample(q[:, 0], self._live.uniforms[:, j])[:, None], q

    def _confidence(self, logits: Tensor, own: Tensor, q: Tensor | None) -> Tensor:
        """The probability [B] of the drawn ids [B, 1]; an argmax has that of its raw logits."""
        if q is not None and self._live.distribution.sampled:
            return q[:, 0].gather(1, own).squeeze(1)
        precise = logits[:, 0].float()
        return (precise.gather(1, own).squeeze(1) - precise.logsumexp(-1)).exp()


class ModelDrafter(ChainDrafter):
    """A smaller causal LM with the target's vocabulary."""

    reads = ()

    def __init__(self, model: PreTrainedModel, cache_type: type[RaggedCache] = RaggedCache):
        self.model = model
        self._cache_type = cache_type
        self._cached = CachedModel(model, cache_type)

    @property
    def head_size(self) -> int:
        return self._cached.head_size

    def room(self, length: int) -> int:
        # The last draft is never fed, so k drafts occupy length + k − 1 positions.
        return max(0, self._cached.context_limit - length + 1)

    def prefill(self, batch: LiveRows) -> None:
        self._live = batch
        if not self._cached.outlives(self.model):
            self._cached = CachedModel(self.model, self._cache_type)
        limit = self._cached.context_limit
        within = [tokens[:limit] for tokens in batch.contexts]
        self._cached.prefill(within, min(batch.longest, limit))

    def read(self, states: Tensor) -> None:
        raise AssertionError("a draft model reads tokens only")

    def _first(self) -> Tensor:
        contexts, cache = self._live.contexts, self._cached.cache
        self._fed = [len(tokens) if self.room(len(tokens)) else 0 for tokens in contexts]
        # One token behind, or two after a full acceptance (the last draft was never fed).
        logits = self._cached.feed(
            [c[n:fed] for c, n, fed in zip(contexts, cache.lengths, self._fed, strict=True)]
        )
        return logits[..., : self._live.vocabulary]

    def _next(self, tokens: Tensor) -> Tensor:
        logits, _ = self._cached.run(tokens[:, -1:])
        self._cached.cache.advance([min(fed, 1) for fed in self._fed])
        return logits[..., : self._live.vocabulary]

    def commit(self, accepted: Sequence[int]) -> None:
        cache = self._cached.cache
        cache.rollback(
            [
                min(length, fed + n) if fed else length
                for length, fed, n in zip(cache.lengths, self._fed, accepted, strict=True)
            ]
        )

    def keep(self, rows: Sequence[int]) -> None:
        self._cached.cache.keep(rows)


class LayerDrafter(ModelDrafter):
    """The target's own first layers under its own final norm and head: no second weights."""

    def __init__(
        self,
        target: PreTrainedModel,
        *,
        layers: int,
        cache_type: type[RaggedCache] = RaggedCache,
    ):
        super().__init__(first_layers(target, layers), cache_type)


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """A view of the model that runs only its first `count` decoder layers.

    Shares every weight; shares nothing that a forward pass changes.
    """
    config = model.config.get_text_config()
    total = config.num_hidden_layers
    if not 1 <= count < total:
        raise UserError(f"layers must be between 1 and {total - 1} for this target; got {count}.")
    small = copy.deepcopy(config)
    small.num_hidden_layers = count
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:count]
    view = _shallow(model)
    view.config = small
    inner = _shallow(model.base_model)
    inner.config = small  # pyright: ignore[reportArgumentType]
    setattr(view, model.base_model_prefix, inner)
    owner, name = _layer_list(inner, total)
    owner._modules[name] = nn.ModuleList(list(owner._modules[name])[:count])  # pyright: ignore
    return view


def _shallow(module: M) -> M:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _layer_list(inner: nn.Module, total: int) -> tuple[nn.Module, str]:
    """Where the decoder layers are kept; a nested owner is replaced by a shallow twin."""
    for name, child in inner._modules.items():
        if isinstance(child, nn.ModuleList) and len(child) == total:
            return inner, name
    for name, child in inner._modules.items():
        if isinstance(child, nn.Module) and any(
            isinstance(c, nn.ModuleList) and len(c) == total for c in child.children()
        ):
            twin = _shallow(child)
            inner._modules[name] = twin
            return _layer_list(twin, total)
    raise UserError(
        f"{type(inner).__name__} keeps its decoder layers in no list of {total} modules."
    )
