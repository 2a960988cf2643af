"""A value out of range is refused where its key is declared, in the words that name the remedy."""

import pytest
from omegaconf import OmegaConf

from distill.errors import UserError
from distill.evaluate.config import (
    BenchmarkConfig,
    CertifyConfig,
    CompareConfig,
    EvaluateConfig,
    HeadShapes,
    ProbeConfig,
    SignalsConfig,
)

GROUPS = (
    BenchmarkConfig, CertifyConfig, CompareConfig, EvaluateConfig, HeadShapes, ProbeConfig,
    SignalsConfig,
)  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
def test_defaults_are_in_range_and_compose(group) -> None:
    """A required key may still be missing while Hydra composes."""
    group()
    assert OmegaConf.structured(group)


@pytest.mark.parametrize(
    ("group", "change", "words"),
    [
        (EvaluateConfig, {"num_draft_tokens": []}, "evaluate.num_draft_tokens=[]: give values"),
        (EvaluateConfig, {"batch_sizes": [2, 2]}, "each once"),
        (EvaluateConfig, {"context_edges": [512, 256]}, "edges must rise"),
        (EvaluateConfig, {"num_prompts": 0}, "evaluate.num_prompts=0: give at least 1"),
        (EvaluateConfig, {"confidence_threshold": 1.5}, "a probability, 0 to 1"),
        (EvaluateConfig, {"samplings": []}, "give at least one, each once"),
        (EvaluateConfig, {"samplings": [{"temperature": 0}, {"temperature": 0}]}, "each once"),
        (EvaluateConfig, {"domains": []}, "null takes those of all domains"),
        (EvaluateConfig, {"domains": ["a"], "floors": {"b": 1.0}}, "'b' is not in"),
        (CertifyConfig, {"samples": 0}, "certify.samples=0: give values from 1 up"),
        (HeadShapes, {"vocabulary_size": 0}, "benchmark.heads.vocabulary_size=0"),
        (SignalsConfig, {"k": [8, 0]}, "benchmark.signals.k=[8, 0]"),
        (SignalsConfig, {"encodings": 1}, "encodings=1: give values from 2 up"),
        (BenchmarkConfig, {"what": "nothing"}, "use decoding, training, loss, signals"),
        (BenchmarkConfig, {"batch_sizes": []}, "benchmark.batch_sizes=[]"),
        (ProbeConfig, {"num_draft_tokens": [0]}, "probe.num_draft_tokens=[0]"),
        (ProbeConfig, {"alphas": [1.5]}, "values above 0 and up to 1"),
        (ProbeConfig, {"teraflops": 0.0}, "give a rate above 0"),
    ],
)
def test_a_value_out_of_range_is_one_line(group, change, words) -> None:
    """As a job makes it: composed by OmegaConf, then a real dataclass."""
    asked = OmegaConf.merge(OmegaConf.structured(group), change)
    if group is HeadShapes:
        asked = OmegaConf.merge(asked, {"width": 8, "target_width": 8})
    with pytest.raises(UserError) as refused:
        OmegaConf.to_object(asked)
    assert words in str(refused.value)
