"""Everything that can be refused before a model loads, whichever stage comes first."""

import hydra
from omegaconf import DictConfig

from distill.artifacts import make_writable
from distill.models.plan import plan_draft
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.candidates import trains
from distill.pipelines.grid import check_evaluation
from distill.pipelines.inputs import draft_folder, output_root, plain, target_folder
from distill.pipelines.reporting import check_run_folder
from distill.schema import DraftConfig
from distill.serving.export import export_dtype
from distill.training.run import check_training


def check_everything(cfg: DictConfig) -> None:
    """Refuse a job that cannot work.

    Raises:
        UserError: the first thing found, with its remedy.
    """
    make_writable(output_root(cfg))
    check_run_folder(cfg)
    export_dtype(cfg.export.dtype)
    if trains(cfg):
        check_training(cfg.trainer, cfg.optimizer, cfg.schedule, cfg.budget)
    source = hydra.utils.instantiate(cfg.data.source)
    source.check()
    check_evaluation(cfg, source)
    shared_vocabulary(target_folder(cfg), draft_folder(cfg))
    if trains(cfg) and draft_folder(cfg) is None:
        plan_draft(target_folder(cfg), DraftConfig(**plain(cfg.draft)))
