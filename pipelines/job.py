"""A job: the typed configuration, what is derived from it once, and its run in MLflow.

Whoever has a `Job` asks nothing of Hydra, and derives nothing twice.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from distill.artifacts import Artifact, build, fingerprint, make_writable
from distill.content import content, plain
from distill.data.sources import Source
from distill.errors import UserError
from distill.evaluate.candidates import drafts_at, usable_drafts
from distill.models.code import allow, check_code
from distill.models.draft import load_draft
from distill.models.eagle3 import feature_layers
from distill.models.folder import folder_is_head
from distill.models.identity import ModelIdentity, identify
from distill.models.parallel import folder_mask
from distill.models.plan import resolve_init, text_config
from distill.models.source import check_model_folder, resolve_model
from distill.models.target import context_length, eos_token_ids, load_target, pick_dtype
from distill.models.vocabulary import shared_vocabulary
from distill.process import return_freed_memory
from distill.ranks import local_rank
from distill.schema import Config, DraftConfig, ModelConfig, TargetConfig, TrackingConfig
from distill.teacher.codecs import Codec, TargetSignal
from distill.tracking.client import connect
from distill.tracking.runs import FINGERPRINT, Run, TrackedJob, numbers, start_job
from distill.training.config import OptimizerConfig
from distill.training.objective import Objective
from distill.versions import hardware

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)

Produce = Callable[[Path, Run], Mapping[str, Any]]
"""Fills a stage's folder and logs into the stage's run; returns what the manifest records."""


@dataclass(frozen=True)
class Invocation:
    """How the job was asked for.

    folder: of this run, for its report and log. overrides: the command line's. config_dirs: folders
    of the user's own that `--config-dir` named.
    """

    folder: Path
    overrides: tuple[str, ...] = ()
    config_dirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """A draft's folder, who both models are, and how many ids they share."""

    folder: Path
    draft: ModelIdentity
    target: ModelIdentity
    vocabulary_size: int


class Target:
    """The target as a local folder, and what its files say; each is found out once.

    The folder is fetched or converted on first use and checked, never loaded by itself.
    """

    def __init__(self, config: TargetConfig, folder: Path, cache: Path, device: torch.device):
        self.config = config
        self.folder = folder
        self._cache = cache
        self._device = device

    @property
    def name(self) -> str:
        """What a reader and a server call the target."""
        return self.config.serving_name or self.config.id

    @cached_property
    def identity(self) -> ModelIdentity:
        return identify(self.folder, self.config, self._cache)

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        return eos_token_ids(self.folder)

    @cached_property
    def context_length(self) -> int:
        """Tokens that its positions cover."""
        return context_length(self.folder)

    def load(self, dtype: str | None = None) -> "PreTrainedModel":
        """The model in eval mode, in `dtype` or `target.dtype`; each rank on its own GPU."""
        return load_target(
            self.folder,
            dtype=pick_dtype(dtype or self.config.dtype, self._device),
            device=self._device,
            device_map=self.config.device_map,
        )


class Job:
    """One command's work. `source`, `signal` and `objective` are built once, at the door."""

    def __init__(
        self,
        config: Config,
        source: Source,
        signal: TargetSignal,
        objective: Objective,
        invocation: Invocation,
    ):
        self.config = config
        self.source = source
        self.signal = signal
        self.objective = objective
        self.invocation = invocation
        self._folders: dict[tuple[str, str, str | None], Path] = {}
        self._tracked: TrackedJob | None = None

    @cached_property
    def output(self) -> Path:
        """Root of artifacts, runs and the registry."""
        return Path(self.config.paths.output).expanduser().absolute()

    @cached_property
    def cache(self) -> Path:
        """Models that are fetched or converted once."""
        return Path(self.config.paths.cache).expanduser()

    @cached_property
    def device(self) -> torch.device:
        """Where models are loaded, by `trainer.accelerator`; each rank has a GPU of its own."""
        if self.config.trainer.accelerator == "cpu" or not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", local_rank() % torch.cuda.device_count())

    @cached_property
    def machine(self) -> dict[str, Any]:
        """`hardware()` as far as this job computes on it: no GPU where it runs on the CPU."""
        found = hardware()
        return found if self.device.type == "cuda" else {**found, "gpus": []}

    @cached_property
    def target(self) -> Target:
        config = self.config.target
        return Target(config, self.model_folder(config, "target"), self.cache, self.device)

    @cached_property
    def target_files(self) -> Path:
        """The target's config and tokenizer as a local folder; its weights may be missing."""
        return self.model_folder(self.config.target, "target", weights=False)

    @cached_property
    def draft(self) -> DraftConfig:
        """The draft's group; `init: auto` is what the target's family allows."""
        if self.config.draft.init != "auto":
            return self.config.draft
        return replace(self.config.draft, init=resolve_init(self.target_files))

    @cached_property
    def optimizer(self) -> OptimizerConfig:
        """Rates that are left null are those of the draft's start."""
        return self.config.optimizer.for_start(self.draft.init)

    @cached_property
    def tracking(self) -> TrackingConfig:
        """Where runs go, and the name of the registered model, by default the target's."""
        return self.config.tracking.for_target(self.target.name)

    @property
    def codec(self) -> Codec:
        """The form in which the signal is kept, of a job that keeps one."""
        assert self.signal.cached, "a live signal has no codec"
        return cast(Codec, self.signal)

    @cached_property
    def draft_folder(self) -> Path | None:
        """Where a `pretrained` or `ready` draft lies; None for a draft that is built."""
        model = self.draft.existing
        return None if model is None else self.model_folder(model, "draft")

    @property
    def mask_asked(self) -> int | None:
        """A parallel draft's mask token: the configured one, else the one that it has already."""
        folder = self.draft_folder
        if self.draft.mask_token is not None or folder is None:
            return self.draft.mask_token
        return folder_mask(folder)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The target's layers after which the draft reads its states; none of a separate draft."""
        folder = self.draft_folder
        if not (self.draft.is_head or (folder is not None and folder_is_head(folder))):
            return ()
        return feature_layers(text_config(self.target_files).num_hidden_layers)

    @cached_property
    def vocabulary_size(self) -> int:
        """Ids that target and draft share."""
        return self.shared_with(self.draft_folder)

    @cached_property
    def trains(self) -> bool:
        """Whether the drafts to measure come from this configuration's own training."""
        return not self.config.evaluate.candidates and self.config.draft.init != "ready"

    @property
    def has_ready_draft(self) -> bool:
        """Whether the pair is known without an evaluation: one draft, measured as it is."""
        return self.config.draft.init == "ready" and not self.config.evaluate.candidates

    @cached_property
    def named_drafts(self) -> list[Path]:
        """Folders of the drafts that `evaluate.candidates` names; damaged ones are said, once.

        Raises:
            UserError: all are damaged.
        """
        found, damaged = self.usable_drafts(self.config.evaluate.candidates)
        if damaged and not found:
            raise damaged[0]
        for error in damaged:
            log.warning("left out: %s", error)
        return found

    def usable_drafts(self, places: Sequence[str]) -> tuple[list[Path], list[UserError]]:
        """Folders of the drafts at some places, and what is wrong with the others."""
        return usable_drafts(
            places, lambda place: drafts_at(place, lambda one: self.model_folder(one, "candidate"))
        )

    def shared_with(self, draft_folder: Path | None) -> int:
        """Ids that the target shares with a draft; UserError at the first that differs."""
        return shared_vocabulary(self.target.folder, draft_folder).size

    def draft_identity(self, folder: Path) -> ModelIdentity:
        return identify(folder, ModelConfig("folder", str(folder)), self.cache)

    def pair(self, champion: Path | None) -> "Pair":
        """The pair that is served: its draft is the champion, or the one that is ready (None)."""
        folder = champion or self.draft_folder
        assert folder is not None, "a draft that is not ready is an evaluation's champion"
        draft = self.draft_identity(folder)
        return Pair(folder, draft, self.target.identity, self.shared_with(folder))

    def load_pair(self, pair: "Pair", dtype: str) -> "tuple[PreTrainedModel, PreTrainedModel]":
        """Target and draft; dtype as `target.dtype` names it."""
        target = self.target.load(dtype)
        return target, self.load_draft(pair.folder, target)

    def draft_content(self) -> dict[str, Any]:
        """For a fingerprint: an existing draft by what it computes, not by its place.

        The place may come to hold another draft. Of a draft that is built its settings say all.
        """
        found = content(self.draft, "train")
        if (model := self.draft.existing) is not None:
            folder = self.model_folder(model, "draft")
            found["model"] = identify(folder, model, self.cache).sha256
        return found

    def load_draft(self, folder: Path, target: "PreTrainedModel") -> "PreTrainedModel":
        """A draft as it is served: in the target's dtype, beside it."""
        return load_draft(folder, dtype=target.dtype, device=target.device)

    def model_folder(self, model: ModelConfig, role: str, *, weights: bool = True) -> Path:
        """A model as a local folder; `models:/…` and `runs:/…` are those of the job's store.

        weights: whether they are needed, and so fetched and looked for.
        """
        if not weights:
            return self._fetch(model, weights=False)
        key = (model.source, model.id, model.revision)
        if key not in self._folders:
            folder = self._fetch(model, weights=True)
            check_model_folder(folder, role)
            check_code(folder, role)
            self._folders[key] = folder
        return self._folders[key]

    def _fetch(self, model: ModelConfig, *, weights: bool) -> Path:
        if model.source == "mlflow":
            make_writable(self.output)
            connect(self.config.tracking, self.output)
        folder = resolve_model(model, self.cache, weights=weights)
        if model.trust_remote_code:
            allow(folder)
        return folder

    @contextmanager
    def opened(self) -> Iterator["Job"]:
        """The job's parent run in MLflow, to which all stages inside the block belong."""
        config = self.config
        with start_job(plain(config), config.tracking, self.output, config.name) as self._tracked:
            yield self

    @property
    def tracked(self) -> TrackedJob:
        assert self._tracked is not None, "the job is not opened"
        return self._tracked

    @property
    def run(self) -> Run:
        """The job's parent run in MLflow."""
        return self.tracked.run

    def make(
        self,
        stage: str,
        settings: Mapping[str, Any],
        inputs: Sequence[Artifact],
        produce: Produce,
        *,
        collective: bool = False,
        pieces: Sequence[str] = (),
        scratch: Sequence[str] = (),
        verb: str | None = None,
    ) -> Artifact:
        """The stage's artifact under its own MLflow run; made only if it is not there yet.

        settings: what decides the content, apart from the inputs. collective: all ranks work on it
        together. pieces, scratch: as for `build`. verb: what the user asks for to get this stage,
        where that is not its name.
        """
        with self.tracked.stage(stage) as run:
            run.log_tags({FINGERPRINT: fingerprint(stage, settings, inputs)})
            artifact = build(
                stage,
                self.output,
                settings,
                inputs,
                lambda folder: dict(produce(folder, run)),
                force=self.forces(verb or stage),
                collective=collective,
                pieces=pieces,
                scratch=scratch,
            )
            if artifact.fresh:
                run.log_metrics(dict(numbers(artifact.counts)))
            else:
                run.log_up_to_date(artifact.counts)
        if artifact.fresh:
            return_freed_memory()
        return artifact

    def forces(self, verb: str) -> bool:
        """`force=true` redoes the stage that was asked for, or all when the whole job was."""
        return self.config.force and self.config.pipeline in (verb, "full")
