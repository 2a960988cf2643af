"""Before any training: which draft could pay on this hardware, from the engine's own step times.

Needs the target and no data; what concerns training is not looked at.
"""

import itertools
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from transformers.utils.logging import disable_progress_bar

from distill.artifacts import Artifact, make_writable, write_json
from distill.evaluate.paper import bills_table
from distill.evaluate.probe import Prospect, advice, probe
from distill.evaluate.steps import Setting
from distill.evaluate.tables import as_text, prospects_table
from distill.models.plan import DraftPlan
from distill.pipelines.inputs import (
    load_configured_target,
    machine,
    output_root,
    plain,
    samplings,
    target_identity,
)
from distill.pipelines.prospects import check_probe, load_or_make, plan_drafts, shared_ids
from distill.pipelines.stage import open_job, run_stage
from distill.tracking.runs import Run

log = logging.getLogger(__name__)
ADVICE, RESULTS = "advice.txt", "prospects.json"


def run(cfg: DictConfig) -> Artifact:
    """Print the plan on paper, the prospects and one sentence of advice for each load.

    Raises:
        UserError: sizes that cannot be built, or loads that cannot be timed.
    """
    make_writable(output_root(cfg))
    check_probe(cfg)
    plans = plan_drafts(cfg)
    settings = {
        "probe": plain(cfg.probe),
        "drafts": {name: plan.config.to_dict() for name, plan in plans.items()},
        "target": target_identity(cfg).sha256,
        "dtype": cfg.target.dtype,
        "sampling": plain(cfg.evaluate.samplings[0]),
        "hardware": machine(cfg),
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        loads = list(_loads(cfg, plans))
        text = _report(cfg, plans, loads)
        (folder / ADVICE).write_text(text, encoding="utf-8")
        every = [asdict(one) | {"ceiling": one.ceiling} for load in loads for one in load]
        write_json(folder / RESULTS, every)
        stage.log_folder(folder, "probe")
        return {"advice": [advice(load) for load in loads]}

    disable_progress_bar()
    with open_job(cfg):
        probed = run_stage(cfg, "probe", settings, [], produce)
    sys.stdout.write((probed.path / ADVICE).read_text(encoding="utf-8"))
    sys.stdout.write(f"probe: {probed.path / RESULTS}\n")
    return probed


def _loads(cfg: DictConfig, plans: dict[str, DraftPlan]) -> list[list[Prospect]]:
    target = load_configured_target(cfg)
    drafts = {name: load_or_make(cfg, name, plan, target) for name, plan in plans.items()}
    sampling, ids = samplings(cfg)[0], shared_ids(cfg)
    grid = itertools.product(cfg.probe.batch_sizes, cfg.probe.contexts)
    settings = [Setting(batch, context, ids, sampling) for batch, context in grid]
    found: list[list[Prospect]] = []
    for load in probe(
        target, drafts, settings, list(cfg.probe.num_draft_tokens), cfg.probe.repetitions
    ):
        log.info("probe: %d of %d loads", len(found) + 1, len(settings))
        found.append(load)
    return found


def _report(cfg: DictConfig, plans: dict[str, DraftPlan], loads: list[list[Prospect]]) -> str:
    every = [prospect for load in loads for prospect in load]
    paper = bills_table(plans, cfg.probe.tokens, cfg.probe.teraflops)
    sentences = "".join(f"{advice(load)}\n" for load in loads)
    return (
        f"{as_text(paper, 150)}{as_text(prospects_table(every, cfg.probe.alphas), 170)}{sentences}"
    )
