"""Stage `register`: the champion becomes a version in MLflow's model registry, under an alias."""

from pathlib import Path

from omegaconf import DictConfig

from distill.pipelines import evaluate
from distill.pipelines.inputs import plain
from distill.pipelines.lineage import lineage
from distill.pipelines.stage import as_job, current_job
from distill.schema import TrackingConfig
from distill.tracking.registry import Champion, register_champion


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
