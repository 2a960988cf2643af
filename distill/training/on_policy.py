"""A share of the training rows answered anew while training, for the target to judge.

The draft answers itself (Agarwal et al. 2024, "On-Policy Distillation of Language Models", GKD,
section 3), or the pair does, as it will serve: the draft proposes, and where it is rejected the
target's own token stands in its place. The pair's text has the target's law; what a draft wrote
behind a rejection, which no server ever tests, is no part of it.
"""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from distill.data.datamodule import Batch
from distill.data.sources.splits import stable_hash
from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter
from distill.speculative.sampling import Sampling
from distill.teacher.live import eagerly

WRITERS = ("draft", "pair")


@dataclass(frozen=True)
class OnPolicy:
    """How the rows are answered.

    share: share of the rows that are drawn. prompt_tokens: how many tokens of a row without a
    prompt are kept as one. target: decodes with the draft, which proposes `num_draft_tokens` a
    round; None: the draft writes alone.
    """

    share: float
    prompt_tokens: int
    eos_token_ids: tuple[int, ...]
    vocabulary_size: int
    seed: int = 0
    target: PreTrainedModel | None = None
    num_draft_tokens: int = 3

    def window(self, draft: PreTrainedModel, window: list[Batch], number: int) -> list[Batch]:
        """The micro-batches of a window; the rows drawn by lot are answered anew at temperature 1.

        The lot and the answers depend only on the window's number, the row and the models, so a
        run that was stopped goes on the same, on any rank.
        """
        device_type = draft.device.type
        with torch.autocast(device_type, enabled=False), eagerly():
            return [self._batch(draft, batch, number) for batch in window]

    def _batch(self, draft: PreTrainedModel, batch: Batch, number: int) -> Batch:
        lengths = batch["attention_mask"].sum(-1).tolist()
        starts = self._starts(batch)
        chosen = [
            line
            for line, row in enumerate(batch["row_index"].tolist())
            if starts[line] < lengths[line] and self._drawn(number, row)
        ]
        if not chosen:
            return batch
        ids = batch["input_ids"]
        answers = decode(
            draft if self.target is None else self.target,
            [ids[line, : starts[line]].tolist() for line in chosen],
            sampling=Sampling(temperature=1.0),
            drafter=None if self.target is None else ModelDrafter(draft),
            num_draft_tokens=0 if self.target is None else self.num_draft_tokens,
            max_new_tokens=max(lengths[line] - starts[line] for line in chosen),
            eos_token_ids=self.eos_token_ids,
            seed=self.seed,
            row_ids=[self._stream(number, int(batch["row_index"][line])) for line in chosen],
            vocabulary_size=self.vocabulary_size,
        ).tokens
        fresh = {name: value.clone() for name, value in batch.items()}
        for line, answer in zip(chosen, answers, strict=True):
            start = starts[line]
            end = start + min(len(answer), lengths[line] - start)
            fresh["input_ids"][line, start:] = 0
            fresh["input_ids"][line, start:end] = ids.new_tensor(answer[: end - start])
            place = torch.arange(ids.shape[1], device=ids.device)
            fresh["supervised"][line] = (place >= start) & (place < end)
            fresh["attention_mask"][line] = (place < end).long()
        return fresh

    def _starts(self, batch: Batch) -> list[int]:
        """Where each row's answer begins; a row that is all answer keeps `prompt_tokens` of it."""
        first = batch["supervised"].int().argmax(-1).tolist()
        return [start if start > 1 else self.prompt_tokens for start in first]

    def _drawn(self, number: int, row: int) -> bool:
        return stable_hash("on policy", self.seed, number, row) < self.share * 2**64

    def _stream(self, number: int, row: int) -> int:
        return stable_hash("answer", number, row)
