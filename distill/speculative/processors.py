"""One function from logits to the distribution that is both sampled and tested, for p and q alike.

Shapes: B rows, S positions, V vocabulary. The semantics of temperature, top-k, top-p, min-p,
repetition penalty and minimum length are transformers' own `LogitsProcessor` classes, in the order
in which `generate` applies them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from distill.speculative.sampling import Sampling

# A nucleus is first looked for among this many of the most likely tokens.
NUCLEUS_SEARCH = 512

Kind = tuple[Sampling, int]
"""A row's settings and the length of its prompt: what decides its processors."""


class OutputPenalty(LogitsProcessor):
    """logit(x) −= frequency·count(x) + presence·[count(x) > 0], counts over the output so far.

    OpenAI's definition, as vLLM has it; transformers has none.
    """

    def __init__(self, prompt_length: int, frequency: float, presence: float):
        self.prompt_length = prompt_length
        self.frequency = frequency
        self.presence = presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        output = input_ids[:, self.prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(
            1, output, torch.ones_like(output, dtype=scores.dtype)
        )
        return scores - self.frequency * counts - self.presence * (counts > 0)


class NucleusWarper(TopPLogitsWarper):
    """transformers' top-p, sorting the vocabulary only where many tokens share the mass.

    A token stays if the tokens above it hold less than top_p: most rows are settled by their first
    tokens, at a tenth of the time that a CPU takes to sort.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if scores.device.type != "cpu" or scores.shape[-1] <= NUCLEUS_SEARCH:
            return self._sorted(input_ids, scores)
        highest, tokens = scores.topk(NUCLEUS_SEARCH)
        mass = (highest - scores.logsumexp(-1, keepdim=True)).exp()
        above = mass.cumsum(-1) - mass
        kept = highest.masked_fill(above >= self.top_p, self.filter_value)
        filtered = torch.full_like(scores, self.filter_value).scatter_(-1, tokens, kept)
        wide = (above[:, -1] < self.top_p).nonzero().squeeze(-1)
        if len(wide):
            filtered[wide] = self._sorted(input_ids, scores[wide])
        return filtered

    def _sorted(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return super().__call__(
            cast("torch.LongTensor", input_ids), cast("torch.FloatTensor", scores)
        )


def context_processors(
    sampling: Sampling, prompt_length: int, eos_token_ids: Sequence[int], device: torch.device
) -> LogitsProcessorList:
    """The processors that look at a row's tokens. They apply to greedy rows too."""
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.min_new_tokens > 0 and eos_token_ids:
        eos = torch.tensor(list(eos_token_ids), device=device)
        processors.append(
            MinNewTokensLengthLogitsProcessor(prompt_length, sampling.min_new_tokens, eos)
        )
    if sampling.frequency_penalty or sampling.presence_penalty:
        processors.append(
            OutputPenalty(prompt_length, sampling.frequency_penalty, sampling.presence_penalty)
        )
    return processors


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """The processors that need logits only. None of them moves the argmax."""
    chain = LogitsProcessorList()
    if sampling.temperature != 1:
        chain.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k > 0:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(NucleusWarper(float(sampling.top_p)))
    if sampling.min_p > 0:
        chain.append(MinPLogitsWarper(float(sampling.min_p)))
    return chain


class Distribution:
    """Logits -> probabilities for the rows of a batch, each with its own settings.

    Call it with the logits of S consecutive positions of every row; position s follows the row's
    context and its first `first + s` drafts. Probabilities are float32, or float64 for float64
    logits.

    of_logits_only: no row's law depends on its tokens, so that the ids may be numbered anyhow and
    those of no probability left out.
    """

    def __init__(
        self,
        settings: Sequence[Sampling],
        prompt_lengths: Sequence[int],
        eos_token_ids: Sequence[int],
        device: torch.device,
    ):
        self._kinds = list(zip(settings, prompt_lengths, strict=True))
        self._chains = {
            kind: context_processors(*kind, eos_token_ids, device) for kind in set(self._kinds)
        }
        self._device = device
        self._group()

    def _group(self) -> None:
        groups: dict[Sampling, list[int]] = defaultdict(list)
        for row, (sampling, _) in enumerate(self._kinds):
            groups[sampling].append(row)
        self._groups = list(groups.items())
        self._with_context = [row for row, kind in enumerate(self._kinds) if self._chains[kind]]
        self.of_logits_only = not self._with_context
        self.greedy = all(sampling.greedy for sampling in groups)
        self.sampled = not any(sampling.greedy for sampling in groups)

    def keep(self, rows: Sequence[int]) -> None:
        self._kinds = [self._kinds[row] for row in rows]
        self._group()

    def best(
        self, logits: Tensor, contexts: Sequence[Sequence[int]], drafts: Tensor, first: int = 0
    ) -> Tensor:
        """The argmax tokens [B, S] of a batch whose rows are all greedy."""
        # `max` gives the first of equal values as `argmax` does, on a CPU at a quarter of its time.
        return self._penalised(logits, contexts, drafts, first).max(-1).indices

    def __call__(
        self, logits: Tensor, contexts: Sequence[Sequence[int]], drafts: Tensor, first: int = 0
    ) -> Tensor:
        """Probabilities [B, S, V] from logits [B, S, V], the rows' tokens and their drafts."""
        logits = self._penalised(logits, contexts, drafts, first)
        if len(self._groups) == 1:
            return _probabilities(logits, self._groups[0][0])
        result = torch.empty_like(logits, dtype=_precise(logits.dtype))
        for sampling, rows in self._groups:
            result[rows] = _probabilities(logits[rows], sampling)
        return result

    def _penalised(
        self, logits: Tensor, contexts: Sequence[Sequence[int]], drafts: Tensor, first: int
    ) -> Tensor:
        if not self._with_context:
            return logits
        logits = logits.to(_precise(logits.dtype), copy=True)
        for kind, rows in self._alike(contexts):
            tokens = torch.tensor([contexts[row] for row in rows], device=self._device)
            for s in range(logits.shape[1]):
                prefix = torch.cat((tokens, drafts[rows, : first + s]), 1)
                logits[rows, s] = _apply(self._chains[kind], prefix, logits[rows, s])
        return logits

    def _alike(self, contexts: Sequence[Sequence[int]]) -> Iterator[tuple[Kind, list[int]]]:
        """Rows of one kind and of one context length: one chain processes them together."""
        groups: dict[tuple[Kind, int], list[int]] = defaultdict(list)
        for row in self._with_context:
            groups[self._kinds[row], len(contexts[row])].append(row)
        for (kind, _), rows in groups.items():
            yield kind, rows


def _precise(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Turn the logits [n, S, V] of rows with the same settings into probabilities."""
    dtype = _precise(logits.dtype)
    if sampling.greedy:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=dtype).scatter_(-1, best, 1)
    # A head may hand over its rows transposed: a softmax over those takes ten times as long.
    flat = logits.flatten(0, 1).to(dtype, memory_format=torch.contiguous_format)
    unused = flat.new_zeros((flat.shape[0], 0), dtype=torch.long)
    return _apply(warpers(sampling), unused, flat).softmax(-1).view(logits.shape)


def _apply(processors: LogitsProcessorList, tokens: Tensor, logits: Tensor) -> Tensor:
    """Run a chain over tokens [n, length] and logits [n, V]."""
    return processors(cast("torch.LongTensor", tokens), cast("torch.FloatTensor", logits))
