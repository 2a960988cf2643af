"""Stage `self_prompt`: the target writes the prompts that nobody gave."""

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig
from transformers import AutoTokenizer

from distill.artifacts import Artifact
from distill.data.self_prompt import PROMPTS, write_prompts
from distill.data.sources import SelfPromptedSource, Source
from distill.data.sources.self_prompted import self_prompted
from distill.data.user_turn import UserTurn, user_turn
from distill.errors import UserError
from distill.models.target import eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.inputs import (
    load_configured_target,
    target_config,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import as_job, run_stage
from distill.tracking.runs import Run


@as_job
def run(cfg: DictConfig) -> Artifact:
    """The prompts of `data=self_prompted`, or of the first such part of a mixture.

    Raises:
        UserError: the data has no such source, or the target's template has no user turn.
    """
    _, written = open_source(cfg)
    if not written:
        raise UserError("pipeline=self_prompt writes the prompts of data=self_prompted: choose it")
    return written[0]


def open_source(cfg: DictConfig) -> tuple[Source, list[Artifact]]:
    """The configured source, ready to be read, and the artifacts of prompts that it reads."""
    source: Source = hydra.utils.instantiate(cfg.data.source)
    source.check()
    asked = self_prompted(source)
    written = [_write(cfg, one) for one in asked]
    for one, artifact in zip(asked, written, strict=True):
        one.read(artifact.path / PROMPTS)
    return source, written


def check_prompting(cfg: DictConfig, source: Source) -> None:
    """Refuse a target that cannot write users' turns, where the data asks it to."""
    if self_prompted(source):
        _turn(cfg)


def _turn(cfg: DictConfig) -> UserTurn:
    place = target_folder(cfg)
    tokenizer = AutoTokenizer.from_pretrained(place)
    return user_turn(tokenizer, target_config(cfg), eos_token_ids(place))


def _write(cfg: DictConfig, source: SelfPromptedSource) -> Artifact:
    target = target_identity(cfg)
    settings = {
        "source": source.writing(),
        "target": target.sha256,
        "tokenizer": target.tokenizer_sha256,
        "template": target.template_sha256,
        "system_prompt": cfg.target.system_prompt,
        "dtype": cfg.target.dtype,
        "seed": cfg.seed,
    }

    def produce(folder: Path, _: Run) -> dict[str, Any]:
        turn = _turn(cfg)
        return write_prompts(
            load_configured_target(cfg),
            turn,
            source,
            folder,
            vocabulary_size=shared_vocabulary(target_folder(cfg), None).size,
            seed=cfg.seed,
        )

    return run_stage(cfg, "self_prompt", settings, [], produce)
