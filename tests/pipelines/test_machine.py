"""What a job says of the machine that it computes on."""

from types import SimpleNamespace

import pytest

from distill.pipelines import job


@pytest.mark.parametrize(("accelerator", "gpus"), [("cpu", []), ("auto", ["G"])])
def test_a_gpu_that_nothing_runs_on_is_no_part_of_the_machine(monkeypatch, accelerator, gpus):
    monkeypatch.setattr(job, "hardware", lambda: {"cpu": "C", "gpus": ["G"]})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    asked = SimpleNamespace(trainer=SimpleNamespace(accelerator=accelerator))
    found = job.Job(asked, None, None, None, None).machine
    assert found == {"cpu": "C", "gpus": gpus}
