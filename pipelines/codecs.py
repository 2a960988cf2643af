"""Before a signal is cached: what each codec costs in bytes and in the draft's gradient."""

import logging
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from distill.artifacts import Artifact, write_json
from distill.data.datamodule import CorpusDataModule
from distill.errors import UserError
from distill.evaluate.codecs import Fidelity, compare_codecs
from distill.evaluate.tables import as_text, fidelity_table
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import generate
from distill.pipelines.inputs import (
    check_at_least,
    draft_folder,
    draft_settings,
    load_configured_target,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import as_job, run_stage
from distill.pipelines.train import make_draft
from distill.teacher.codecs import Codec, Hidden, Samples, TopKTail
from distill.teacher.live import LiveTeacher
from distill.tracking.runs import Run
from distill.training.objective import Objective

log = logging.getLogger(__name__)
TABLE, RESULTS = "codecs.txt", "codecs.json"


@as_job
def run(cfg: DictConfig) -> Artifact:
    """Print bytes per token, angle, norm ratio and noise of each codec, on training batches.

    The draft is the configured one as it starts; `draft=ready draft.model.id=FOLDER` looks at a
    trained one. A codec that the objective cannot learn from is left out, with the reason.

    Raises:
        UserError: counts below 1, fewer than two repetitions, or an objective that cannot work or
            compares with a second draft.
    """
    sizes = plain(cfg.codecs)
    check_at_least(1, "codecs", {name: value for name, value in sizes.items() if value != []})
    check_at_least(2, "codecs", {"repetitions": sizes["repetitions"]})  # noise is a spread
    if cfg.objective.weighting == "learnable":
        raise UserError("pipeline=codecs has no reference draft: set objective.weighting=none")
    objective = hydra.utils.instantiate(cfg.objective)
    codecs = _codecs(cfg, objective)
    corpus = generate.run(cfg)
    settings = {
        **{name: plain(cfg[name]) for name in ("codecs", "objective")},
        "draft": draft_settings(cfg),
        "tokens_per_batch": cfg.trainer.tokens_per_batch,
        "target": target_identity(cfg).sha256,
        "dtype": cfg.target.dtype,
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        found = _compare(cfg, corpus, codecs, objective)
        (folder / TABLE).write_text(as_text(fidelity_table(found)), encoding="utf-8")
        write_json(folder / RESULTS, [asdict(one) for one in found])
        stage.log_folder(folder, "codecs")
        return {one.codec: {"angle": one.angle, "noise": one.noise} for one in found}

    compared = run_stage(cfg, "codecs", settings, [corpus], produce)
    sys.stdout.write((compared.path / TABLE).read_text(encoding="utf-8"))
    sys.stdout.write(f"codecs: {compared.path / RESULTS}\n")
    return compared


def _compare(
    cfg: DictConfig, corpus: Artifact, codecs: dict[str, Codec], objective: Objective
) -> list[Fidelity]:
    vocabulary = shared_vocabulary(target_folder(cfg), draft_folder(cfg))
    target = load_configured_target(cfg)
    draft, _ = make_draft(cfg, target, corpus)
    limit = cfg.trainer.tokens_per_batch
    module = CorpusDataModule(
        corpus.path, tokens_per_batch=limit, tokens_per_step=limit, seed=cfg.seed
    )
    module.setup()
    windows = islice(module.train_dataloader(), cfg.codecs.batches)
    place = target.device
    draft.to(place)  # pyright: ignore[reportArgumentType]
    batches = [{k: v.to(place) for k, v in b.items()} for window in windows for b in window]
    return compare_codecs(
        draft,
        LiveTeacher(target, vocabulary.size),
        batches,
        codecs,
        objective,
        vocabulary.size,
        repetitions=cfg.codecs.repetitions,
        seed=cfg.seed,
        progress=lambda done: log.info("codecs: %s", done),
    )


def _codecs(cfg: DictConfig, objective: Objective) -> dict[str, Codec]:
    found: dict[str, Codec] = {"hidden": Hidden()}
    objective.check(found["hidden"])  # refuses what no codec could mend
    softness = objective.temperature
    for every in (
        {f"top_k {k}": TopKTail(k, temperature=softness) for k in cfg.codecs.k},
        {f"sampled {n}": Samples(n, temperature=softness) for n in cfg.codecs.draws},
    ):
        try:
            for codec in every.values():
                objective.check(codec)
        except UserError as reason:
            log.warning("codecs: %s left out: %s", ", ".join(every), reason)
        else:
            found |= every
    return found
