"""What a champion came from: tags of a version, facts of a card, a table of the report."""

from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.pipelines.inputs import target_identity
from distill.tracking.git import git_state
from distill.tracking.registry import COMMIT_TAG

MEASURED = ("verdict", "alpha", "alpha_low", "alpha_high", "speedup", "speedup_low", "speedup_high")


def lineage(cfg: DictConfig, measured: Artifact) -> dict[str, Any]:
    """What the champion came from and what it does; no local paths but a target's own id."""
    target = target_identity(cfg)
    git = git_state()
    return {
        **{name: measured.counts[name] for name in MEASURED},
        "num_draft_tokens": measured.counts["num_draft_tokens"],
        "target": target.id,
        "target_revision": target.revision,
        "target_weights_sha256": target.weights_sha256,
        "tokenizer_sha256": target.tokenizer_sha256,
        "template_sha256": target.template_sha256,
        "draft_weights_sha256": measured.counts["draft_weights_sha256"],
        "data_fingerprint": next(iter(measured.manifest["inputs"].values())),
        COMMIT_TAG: git.commit if git else None,
    }
