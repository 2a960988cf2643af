"""Stage `register`: the champion becomes a version in MLflow's model registry, under an alias."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.pipelines import evaluate
from distill.pipelines.inputs import plain, target_identity
from distill.pipelines.stage import as_job, current_job
from distill.schema import TrackingConfig
from distill.tracking.git import git_state
from distill.tracking.registry import COMMIT_TAG, Champion, register_champion

MEASURED = ("verdict", "alpha", "alpha_low", "alpha_high", "speedup", "speedup_low", "speedup_high")


@as_job
def run(cfg: DictConfig) -> Champion:
    """A version of the champion's folder; the same champion is not registered twice."""
    measured = evaluate.measure(cfg)
    with current_job().stage("register") as stage:
        return register_champion(
            Path(measured.counts["draft_folder"]),
            TrackingConfig(**plain(cfg.tracking)),
            {k: str(v) for k, v in lineage(cfg, measured).items() if v is not None},
            stage,
        )


def lineage(cfg: DictConfig, measured: Artifact) -> dict[str, Any]:
    """What the champion came from and what it does: tags of a version, facts of a card."""
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
