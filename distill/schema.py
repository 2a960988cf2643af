"""The configuration as dataclasses, composed of the groups that each part of the code declares.

A typo fails while Hydra composes; a value out of range when the group is made. Nothing heavy is
imported here: `python -m distill --help` must answer at once. The nodes `data.source`, `objective`
and `signal` name a class by `_target_`, with its own arguments; `distill.cli` binds them to its
signature before anything runs.
"""

import difflib
import re
from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from distill.content import deciding
from distill.data.config import DataConfig, GenerateConfig
from distill.errors import UserError
from distill.evaluate.config import (
    BenchmarkConfig,
    CertifyConfig,
    CompareConfig,
    EvaluateConfig,
    PlanConfig,
    ProbeConfig,
)
from distill.models.config import DraftConfig, ModelConfig, TargetConfig
from distill.serving.config import ExportConfig
from distill.tracking.config import TrackingConfig
from distill.training.config import BudgetConfig, OptimizerConfig, ScheduleConfig, TrainerConfig

__all__ = [
    "BenchmarkConfig",
    "BudgetConfig",
    "CertifyConfig",
    "CompareConfig",
    "Config",
    "DataConfig",
    "DraftConfig",
    "EvaluateConfig",
    "ExportConfig",
    "GenerateConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PathsConfig",
    "PlanConfig",
    "ProbeConfig",
    "ScheduleConfig",
    "TargetConfig",
    "TrackingConfig",
    "TrainerConfig",
]

VERBS = {
    "full": "the whole road: distil, evaluate, register, export",
    "prepare": "rows read, checked, tokenised, split; without data the target writes the prompts",
    "generate": "the target answers rows that have no text",
    "cache": "the target's signal kept, so that training runs without the target",
    "train": "a draft is trained; candidates are written on the way",
    "evaluate": "drafts decode for real: tables, verdict, report",
    "register": "the champion as a version in MLflow's registry",
    "export": "the champion as a folder that servers load",
    "certify": "proof that this pair decodes exactly, and that faults would show",
    "compare": "two evaluations side by side",
    "probe": "before training: the plan on paper, and which draft would pay here",
    "benchmark": "this code beside others: decoding, training, loss, signals, verdict",
}
"""What `pipeline=` takes."""

REMOVED = {
    "what": "use benchmark.what",
    "runs": "use compare.runs",
    "codecs": "use pipeline=benchmark benchmark.what=signals and benchmark.signals",
    "evaluate.racing": "evaluate.max_candidates screens at the same price and names the champion",
    "evaluate.bootstrap": "intervals are Student's t, simultaneous over all arms; leave it out",
    "evaluate.contexts": "use evaluate.context_edges",
    "certify.prompts": "use certify.num_prompts",
    "data.source.prompts": "use data.source.num_prompts",
    "probe.contexts": "use probe.context_lengths",
    "probe.repetitions": "use probe.timings",
    "benchmark.orders": "the benchmark of selections is gone; evaluate.max_candidates screens",
    "draft/tenth": "use draft=svd, or draft=auto, which prunes where it can",
    "optimizer.ema": "it gained nothing; leave it out",
    "objective.weighting": "weighting tokens cost alpha; leave it out",
    "objective.entropy_slope": "weighting tokens cost alpha; leave it out",
    "objective.keep": "weighting tokens cost alpha; leave it out",
    "objective.reference": "weighting tokens cost alpha; leave it out",
    "objective.hidden_match": "regressing hidden states cost alpha; leave it out",
}
"""Keys that there were, and what to use in their place."""

REMOVED_VERBS = {
    "plan": "pipeline=probe probe.measure=false",
    "self_prompt": "pipeline=prepare",
    "codecs": "pipeline=benchmark benchmark.what=signals",
    "report": "pipeline=evaluate, which draws the report again when all is up to date",
}

NAME = re.compile(r"[^\W_][\w.-]*")
LARGEST_SEED = 2**32 - 1


@dataclass
class PathsConfig:
    """output: artifacts, runs and the registry. cache: models fetched and converted once."""

    output: str = "outputs"
    cache: str = "${oc.env:DISTILL_CACHE,'~/.cache/distill'}"


@dataclass
class Config:
    """A job. pipeline: what is asked for, one of `VERBS`. name: of its folders and its export."""

    name: str = "default"
    seed: int = 0
    force: bool = deciding(default=False)
    """Redo the stages asked for, even when they are up to date."""
    pipeline: str = "full"
    target: TargetConfig = field(default_factory=TargetConfig)
    draft: DraftConfig = field(default_factory=DraftConfig)
    data: DataConfig = field(default_factory=DataConfig)
    generate: GenerateConfig = field(default_factory=GenerateConfig)
    objective: dict[str, Any] = MISSING
    signal: dict[str, Any] = MISSING
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    certify: CertifyConfig = field(default_factory=CertifyConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    compare: CompareConfig = field(default_factory=CompareConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UserError(
                f"name={self.name}: give one plain folder name, of letters, digits, '_', '-', '.'"
            )
        if not 0 <= self.seed <= LARGEST_SEED:
            raise UserError(f"seed={self.seed}: give a number from 0 to {LARGEST_SEED}")
        if self.pipeline in REMOVED_VERBS:
            raise UserError(f"pipeline={self.pipeline} is gone: use {REMOVED_VERBS[self.pipeline]}")
        if self.pipeline not in VERBS:
            close = difflib.get_close_matches(self.pipeline, VERBS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(VERBS)}"
            raise UserError(f"pipeline={self.pipeline}: there is no such verb; {hint}")


def register() -> None:
    """Put the root schema where `conf/config.yaml` finds it as `schema`, and our one resolver."""
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("of_size", of_size, replace=True)


def of_size(name: str, *, _root_: Any) -> Any:
    """`${of_size:NAME}`: that number of the size of the job (`plan.sizes`).

    While none is chosen it is the smallest size's: so `--cfg job --resolve` shows that one.
    """
    sizes, size = _root_.plan.sizes, _root_.plan.size
    size = next(iter(sizes), None) if size is None else size
    if size not in sizes or name not in sizes[size]:
        raise UserError(f"plan.size={size} has no {name}; plan.sizes has {', '.join(sizes)}")
    return sizes[size][name]
