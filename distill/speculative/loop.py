"""The decoding loop. Plain decoding is the same loop with no drafts.

Shapes: B live rows, K drafted tokens, V shared vocabulary.

A round: draft up to k tokens per row, run the target once over the last committed token and the
drafts, let the rule decide, commit 1..k+1 tokens. Rows that end leave the batch; they cost and
count nothing more.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from distill.speculative.cached_model import CachedModel
from distill.speculative.drafters import Drafter, LiveRows, Proposal
from distill.speculative.round_length import DraftLength, most_drafts
from distill.speculative.rule import Rule, Ruling, greedy_rule
from distill.speculative.stats import PromptStats, Timing
from distill.speculative.stopwatch import seconds
from distill.speculative.uniforms import Uniforms

# Probability outside the shared ids beyond which the two vocabularies deserve a warning.
NOTABLE_MASS = 1e-3


@dataclass
class Row:
    """A prompt while it is decoded: its counts, its new tokens and how many it may have."""

    stats: PromptStats
    budget: int
    tokens: list[int]


@dataclass
class Loop:
    """The state of one `decode` call; `run` decodes until no row is left."""

    live: LiveRows
    target: CachedModel
    drafter: Drafter | None
    draft_length: DraftLength
    rows: list[Row]
    streams: Uniforms
    eos: frozenset[int]
    rule: Rule
    watch: Callable[[int], None] = lambda _: None
    timing: Timing = field(default_factory=Timing)

    def run(self) -> Timing:
        self._most = most_drafts(self.draft_length)
        start = self._clock()
        if self.drafter is not None and self._most:
            self.drafter.prefill(self.live)
            reads, read = self.drafter.reads, self.drafter.read
        else:
            reads, read = (), None
        self.target.prefill(self.live.contexts, self.live.longest, reads, read)
        prefilled = self._clock()
        while self.rows:
            self._round()
            self.watch(sum(row.budget - len(row.tokens) for row in self.rows))
        end = self._clock()
        self.timing.prefill_seconds = prefilled - start
        self.timing.decode_seconds = end - prefilled
        return self.timing

    def _round(self) -> None:
        numbers = self._numbers()
        start = self._clock()
        proposal, counts = self._draft(numbers[:, : self._most])
        drafted = self._clock()
        logits = self._verify(proposal.tokens)
        ruling = self._judge(proposal, logits, counts, numbers[:, self._most :])
        accepted, following = ruling.accepted.tolist(), ruling.next_token.tolist()
        verified = self._clock()
        self._note_time(drafted - start, verified - drafted, proposal.tokens.shape[1])
        self._commit(proposal.tokens.tolist(), counts, accepted, following, ruling.alpha.tolist())
        self._retire()

    def _numbers(self) -> Tensor:
        """K numbers to draft with, K to test with and one for the final draw: [B, 2K+1]."""
        if self.live.distribution.greedy:
            return torch.zeros((len(self.rows), 2 * self._most + 1), device=self.target.device)
        return self.streams.draw(2 * self._most + 1)

    def _draft(self, uniforms: Tensor) -> tuple[Proposal, list[int]]:
        """The round's drafts, and how many of them are real in each row."""
        limits = self._limits()
        k = max(limits)
        if self.drafter is None or k == 0:
            empty = torch.zeros((len(limits), 0), dtype=torch.long, device=self.target.device)
            return Proposal(empty, None), limits
        self.live.uniforms = uniforms
        bounds = [limits]
        if isinstance(self.draft_length, int):
            proposal = self.drafter.propose(k)
        else:
            this = self.draft_length.start(len(self.rows))
            proposal = self.drafter.propose(k, this)
            bounds.append(this.counts)
        if proposal.counts is not None:
            bounds.append(proposal.counts)
        return proposal, [min(row) for row in zip(*bounds, strict=True)]

    def _limits(self) -> list[int]:
        """Drafts each row can use: k, its budget less the pass's own token, the drafter's room."""
        if self.drafter is None:
            return [0] * len(self.rows)
        return [
            min(self._most, row.budget - len(row.tokens) - 1, self.drafter.room(len(context)))
            for row, context in zip(self.rows, self.live.contexts, strict=True)
        ]

    def _verify(self, drafts: Tensor) -> Tensor:
        """The target's logits [B, K+1, V] after the last committed token and after each draft."""
        last = [[context[-1]] for context in self.live.contexts]
        tokens = torch.cat((torch.tensor(last, device=self.target.device), drafts), 1)
        logits, states = self.target.run(tokens)
        if self.drafter is not None and states is not None:
            self.drafter.read(states)
        self.target.cache.advance([tokens.shape[1]] * len(self.rows))
        if not self.timing.verify_steps:
            _warn_of_mass_outside(logits[:, 0], self.live.vocabulary)
        return logits[..., : self.live.vocabulary]

    def _judge(
        self, proposal: Proposal, logits: Tensor, counts: list[int], uniforms: Tensor
    ) -> Ruling:
        drafts, contexts = proposal.tokens, self.live.contexts
        real = torch.tensor(counts, device=drafts.device)
        if self.live.distribution.greedy:
            best = self.live.distribution.best(logits, contexts, drafts)
            return greedy_rule(drafts, best, real)
        p = self.live.distribution(logits, contexts, drafts)
        q = proposal.q
        if q is None:
            q = torch.zeros_like(p[:, :-1]).scatter_(-1, drafts[..., None], 1)
        tests = uniforms[:, : drafts.shape[1]]
        return self.rule(drafts, q, p, torch.cat((tests, uniforms[:, -1:]), 1), real)

    def _note_time(self, draft: float, verify: float, steps: int) -> None:
        self.timing.draft_seconds += draft
        self.timing.verify_seconds += verify
        self.timing.draft_steps += steps
        self.timing.verify_steps += 1

    def _commit(
        self,
        drafts: list[list[int]],
        counts: list[int],
        accepted: list[int],
        following: list[int],
        alphas: list[list[float]],
    ) -> None:
        """Append to every row what it won, cut at the first end token; roll both caches back."""
        lengths: list[int] = []
        for i, row in enumerate(self.rows):
            context = self.live.contexts[i]
            lengths.append(len(context) + accepted[i])
            block = self._until_end([*drafts[i][: accepted[i]], following[i]])
            context.extend(block)
            row.tokens.extend(block)
            row.stats.add_round(counts[i], accepted[i], len(block), alphas[i][: counts[i]])
            if self._most and not counts[i]:
                row.stats.plain_passes += 1
        self.target.cache.rollback(lengths)
        if self.drafter is not None and drafts[0]:
            self.drafter.commit(accepted)

    def _until_end(self, block: list[int]) -> list[int]:
        for n, token in enumerate(block):
            if token in self.eos:
                return block[: n + 1]
        return block

    def _retire(self) -> None:
        """Let finished rows leave the batch."""
        alive: list[int] = []
        for i, row in enumerate(self.rows):
            if row.tokens[-1] in self.eos:
                row.stats.finish_reason = "eos"
            elif len(row.tokens) == row.budget:
                row.stats.finish_reason = "length"
            else:
                alive.append(i)
        if len(alive) < len(self.rows):
            self._keep(alive)

    def _keep(self, alive: list[int]) -> None:
        self.rows = [self.rows[i] for i in alive]
        if not alive:
            return
        self.live.contexts[:] = [self.live.contexts[i] for i in alive]
        self.live.distribution.keep(alive)
        self.streams.keep(alive)
        self.target.cache.keep(alive)
        if self.drafter is not None and self._most:
            self.drafter.keep(alive)

    def _clock(self) -> float:
        return seconds(self.target.device)


def _warn_of_mass_outside(logits: Tensor, vocabulary: int) -> None:
    """Warn where the target itself puts real probability outside the shared ids."""
    if logits.shape[-1] == vocabulary:
        return
    mass = logits.float().softmax(-1)[:, vocabulary:].sum(-1).max().item()
    if mass > NOTABLE_MASS:
        warnings.warn(
            f"the target puts {mass:.1%} of its probability outside the {vocabulary} shared ids; "
            "these ids are cut off for both models.",
            stacklevel=2,
        )
