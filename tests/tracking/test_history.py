"""Training curves come back as they were trained, over restarts and repeated logging."""

from distill.schema import TrackingConfig
from distill.tracking.history import histories
from distill.tracking.runs import FINGERPRINT, start_job


def log(root, points, fingerprint="f"):
    """A job whose train stage logs (step, tokens, loss)."""
    with start_job({}, TrackingConfig(), root, "job") as job, job.stage("train") as run:
        run.log_tags({FINGERPRINT: fingerprint})
        for step, tokens, loss in points:
            run.log_metrics({"train/tokens": tokens, "train/loss": loss}, step)


def test_runs_of_one_artifact_are_one_curve(root):
    log(root, [(10, 100, 3.0), (20, 200, 2.0), (25, 250, 1.95), (30, 300, 1.9)])  # back to 20
    log(root, [(21, 210, 1.8), (30, 300, 1.5)])
    log(root, [(10, 100, 9.0)], fingerprint="another")
    with start_job({}, TrackingConfig(), root, "reader") as job:
        found = histories(job.run, "f", ["train/loss", "absent"], over="train/tokens")
    assert found == {"train/loss": [(100.0, 3.0), (200.0, 2.0), (210.0, 1.8), (300.0, 1.5)]}


def test_a_value_that_is_logged_again_is_one_point(root):
    log(root, [(1, 10, 3.0), (2, 10, 3.0), (3, 30, 2.0)])
    with start_job({}, TrackingConfig(), root, "reader") as job:
        found = histories(job.run, "f", ["train/loss"], over="train/tokens")
    assert found == {"train/loss": [(10.0, 3.0), (30.0, 2.0)]}
