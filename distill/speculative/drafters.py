"""Drafters guess the next tokens and say with which probability they drew them.

Shapes: B rows, K drafted tokens, V vocabulary.
"""

import copy
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
    """tokens [B, K] and the q [B, K, V] that drew them; q is None where it is one-hot on them."""

    tokens: Tensor
    q: Tensor | None


class Drafter(Protocol):
    """Guesses during one `decode` call. The rule never knows which kind of drafter it judges."""

    @property
    def model(self) -> PreTrainedModel:
        """The model whose weights are used (put into eval mode while decoding)."""
        ...

    @property
    def head_size(self) -> int:
        """Number of ids it can put probability on."""
        ...

    def room(self, length: int) -> int:
        """How many tokens it can draft behind a context of `length` tokens."""
        ...

    def prefill(self, batch: LiveRows) -> None:
        """Start over on these rows, and read their prompts."""
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


class ModelDrafter:
    """A smaller causal LM with the target's vocabulary."""

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

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        contexts, cache = self._live.contexts, self._cached.cache
        self._fed = [len(tokens) if self.room(len(tokens)) else 0 for tokens in contexts]
        # One token behind, or two after a full acceptance (the last draft was never fed).
        logits = self._cached.feed(
            [c[n:fed] for c, n, fed in zip(contexts, cache.lengths, self._fed, strict=True)]
        )
        step = [min(fed, 1) for fed in self._fed]
        tokens = torch.zeros((len(contexts), 0), dtype=torch.long, device=self._cached.device)
        probabilities: list[Tensor] = []
        for j in range(k):
            if j:
                logits = self._cached.run(tokens[:, -1:])
                cache.advance(step)
            assert logits is not None
            logits = logits[..., : self._live.vocabulary]
            token, q = self._draw(logits, tokens, j)
            tokens = torch.cat((tokens, token), 1)
            if q is not None:
                probabilities.append(q)
            if keep_going is not None and not keep_going(self._confidence(logits, token, q)):
                break
        return Proposal(tokens, torch.cat(probabilities, 1) if probabilities else None)

    def _draw(self, logits: Tensor, drafts: Tensor, j: int) -> tuple[Tensor, Tensor | None]:
        """One token [B, 1] per row from logits [B, 1, V]; q [B, 1, V] unless all are greedy."""
        contexts, distribution = self._live.contexts, self._live.distribution
        if distribution.greedy:
            return distribution.best(logits, contexts, drafts, first=j), None
        q = distribution(logits, contexts, drafts, first=j)
        return sample(q[:, 0], self._live.uniforms[:, j])[:, None], q

    def _confidence(self, logits: Tensor, token: Tensor, q: Tensor | None) -> Tensor:
        """The probability [B] of the drawn tokens [B, 1]; an argmax has that of its raw logits."""
        if q is not None and self._live.distribution.sampled:
            return q[:, 0].gather(1, token).squeeze(1)
        precise = logits[:, 0].float()
        return (precise.gather(1, token).squeeze(1) - precise.logsumexp(-1)).exp()

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
