"""The pair that this configuration serves: its target, the draft to certify or time, prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus
from distill.errors import UserError
from distill.models.draft import load_draft
from distill.models.identity import identify
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import evaluate
from distill.pipelines.inputs import (
    cache_root,
    draft_folder,
    load_configured_target,
    target_folder,
    target_identity,
)
from distill.schema import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Pair:
    """vocabulary_size: ids that both models share. sha256: see `ModelIdentity`."""

    draft: Path
    draft_sha256: str
    target_sha256: str
    draft_weights_sha256: str
    target_weights_sha256: str
    vocabulary_size: int

    def load(self, cfg: DictConfig, dtype: str) -> "tuple[PreTrainedModel, PreTrainedModel]":
        """Target and draft; dtype as `target.dtype` names it."""
        cfg = OmegaConf.merge(cfg, {"target": {"dtype": dtype}})  # pyright: ignore
        target = load_configured_target(cfg)
        return target, load_draft(self.draft, dtype=target.dtype, device=target.device)


def find_pair(cfg: DictConfig) -> Pair:
    """The draft that is `ready`, else the champion of this configuration's evaluation."""
    if cfg.draft.init == "ready" and not cfg.evaluate.candidates:
        folder = draft_folder(cfg)
    else:
        folder = Path(evaluate.measure(cfg).counts["draft_folder"])
    assert folder is not None
    draft = identify(folder, ModelConfig("folder", str(folder)), cache_root(cfg))
    target = target_identity(cfg)
    return Pair(
        folder,
        draft.sha256,
        target.sha256,
        draft.weights_sha256,
        target.weights_sha256,
        shared_vocabulary(target_folder(cfg), folder).size,
    )


def held_out(corpus: Artifact, count: int) -> list[list[int]]:
    """The first `count` evaluation prompts as token ids; UserError where there are fewer."""
    rows = load_corpus(corpus.path)["evaluation"]
    if len(rows) < count:
        raise UserError(
            f"the data has {len(rows)} evaluation prompts and {count} are asked for: raise "
            "data.evaluation_rows, or lower what asks"
        )
    rows = rows.select(range(count))
    lengths = zip(rows["input_ids"], rows["prompt_length"], strict=True)
    return [list(tokens[:length]) for tokens, length in lengths]
