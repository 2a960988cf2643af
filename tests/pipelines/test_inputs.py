"""What stages read, apart from any stage."""

import pytest
from omegaconf import OmegaConf

from distill.pipelines import inputs


@pytest.mark.parametrize(("accelerator", "gpus"), [("cpu", []), ("auto", ["G"])])
def test_a_gpu_that_nothing_runs_on_is_no_part_of_the_machine(monkeypatch, accelerator, gpus):
    monkeypatch.setattr(inputs, "hardware", lambda: {"cpu": "C", "gpus": ["G"]})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    cfg = OmegaConf.create({"trainer": {"accelerator": accelerator}})
    assert inputs.machine(cfg) == {"cpu": "C", "gpus": gpus}
