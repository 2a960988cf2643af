"""What candidates are called, apart from any model."""

import json
import shutil

from distill.evaluate import screening


def test_checkpoints_of_two_trainings_are_measured_side_by_side(distill, tmp_path):
    """More than two: they are also read teacher-forced, and their names become names of metrics."""
    for seed in (0, 1):
        distill("pipeline=train", f"seed={seed}")
    trainings = tmp_path / "outputs" / "artifacts" / "train"
    distill("pipeline=evaluate", f"evaluate.candidates=[{trainings}]", "evaluate.max_candidates=4")
    (path,) = (tmp_path / "outputs" / "artifacts" / "judge").glob("*/evaluation.json")
    names = [one["name"] for one in json.loads(path.read_text())["candidates"]]
    assert len({*names}) == 4
    assert len({name.split("/")[0] for name in names}) == 2


def test_checkpoints_that_were_moved_together_are_read_on_the_same_rows(
    distill, tmp_path, monkeypatch
):
    """Their metrics.json may be of different validation rows: no order can be made of them."""
    read = []
    real = screening.teacher_forced
    monkeypatch.setattr(
        screening, "teacher_forced", lambda *a, **k: read.append(list(a[1])) or real(*a, **k)
    )
    for seed in (0, 1):
        distill("pipeline=train", f"seed={seed}")
    trainings = (tmp_path / "outputs" / "artifacts" / "train").glob("*/candidates")
    for number, training in enumerate(trainings):
        last = max(training.iterdir())
        shutil.copytree(last, tmp_path / "drafts" / f"copy{number}")
        (tmp_path / "drafts" / f"link{number}").symlink_to(last)
    for kind in ("copy", "link"):
        names = [f"{kind}0", f"{kind}1"]
        places = [str(tmp_path / "drafts" / name) for name in names]
        distill(
            "pipeline=evaluate",
            f"evaluate.candidates=[{','.join(places)}]",
            "evaluate.max_candidates=1",
        )
        assert read.pop() == names
