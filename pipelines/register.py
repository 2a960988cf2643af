"""Stage `register`: the champion becomes a version in MLflow's model registry, under an alias."""

from distill.pipelines.job import Job
from distill.pipelines.judge import Judged
from distill.tracking.registry import Champion, register_champion


def run(job: Job, judged: Judged) -> Champion:
    """A version of the champion's folder; the same champion is not registered twice."""
    with job.tracked.stage("register") as stage:
        return register_champion(
            judged.draft_folder,
            job.tracking,
            {k: str(v) for k, v in judged.lineage.items() if v is not None},
            stage,
        )
