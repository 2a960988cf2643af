"""Verb `probe`: before any training, which draft could pay on this hardware, and what it takes.

The plan on paper needs configs and tokenizers only; step times need the target, and no data.
"""

import itertools
import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distill.content import content, plain
from distill.errors import UserError
from distill.evaluate.benchmark.probe import Prospect, advice, probe
from distill.evaluate.benchmark.step_times import Setting
from distill.evaluate.report.tables import as_text, bills_table, prospects_table
from distill.files import write_json, write_text
from distill.losses.fused import chunk_tokens
from distill.models.draft import initialise_draft
from distill.models.eagle3 import FEWEST_LAYERS, is_head
from distill.models.head_plan import plan_existing, plan_head, plan_made, random_head
from distill.models.plan import DraftPlan, plan_draft, plan_memory, text_config
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.job import Job
from distill.schema import DraftConfig
from distill.tracking.runs import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
ADVICE, RESULTS = "advice.txt", "prospects.json"


def run(job: Job) -> None:
    """Print the plan on paper; where it measures, prospects and a sentence for each load.

    Raises:
        UserError: tokenizers that differ, sizes that cannot be built, loads that cannot be timed.
    """
    sys.stdout.write(_plan(job))
    if not job.config.probe.measure:
        return
    longest = job.target.context_length
    if max(job.config.probe.context_lengths) >= longest:
        raise UserError(
            f"probe.context_lengths={job.config.probe.context_lengths}: the target holds {longest}"
        )
    plans = _plan_drafts(job)
    settings = {
        "probe": content(job.config.probe, "probe"),
        "drafts": {name: plan.config.to_dict() for name, plan in plans.items()},
        "target": job.target.identity.sha256,
        "dtype": job.config.target.dtype,
        "sampling": plain(job.config.evaluate.samplings[0]),
        "hardware": job.machine,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        loads = _loads(job, plans)
        write_text(folder / ADVICE, _report(job, plans, loads))
        every = [asdict(one) | {"ceiling": one.ceiling} for load in loads for one in load]
        write_json(folder / RESULTS, every)
        stage.log_folder(folder, "probe")
        return {"advice": [advice(load) for load in loads]}

    with job.opened():
        probed = job.make("probe", settings, [], produce)
    sys.stdout.write((probed.path / ADVICE).read_text(encoding="utf-8"))
    sys.stdout.write(f"probe: {probed.path / RESULTS}\n")


def planned(job: Job, target: Path, draft: Path | None) -> DraftPlan:
    """The draft that is to be made, or that lies in a folder; both folders need no weights."""
    return plan_made(target, job.draft) if draft is None else plan_existing(target, draft)


def _plan(job: Job) -> str:
    """Shared vocabulary, the draft's sizes and memory, from configs and tokenizers alone."""
    target, existing = job.target_files, job.draft.existing
    draft = None if existing is None else job.model_folder(existing, "draft", weights=False)
    plan, trainer, devices = planned(job, target, draft), job.config.trainer, _devices(job)
    sharded = trainer.strategy == "fsdp"
    memory = plan_memory(
        plan,
        tokens_per_batch=trainer.tokens_per_batch,
        chunk_size=chunk_tokens(plan.config.hidden_size, job.objective.chunk_size),
        target_shards=devices if job.config.target.device_map or sharded else 1,
        draft_shards=devices if sharded else 1,
    )
    return (
        f"shared vocabulary       {shared_vocabulary(target, draft).size} ids\n"
        f"start                   {job.draft.init}\n{plan.table()}\n"
        f"over {devices} device(s) a node\n{memory.table()}\n"
    )


def _devices(job: Job) -> int:
    """GPUs a node: those asked for, or those seen here."""
    seen, asked = max(1, torch.cuda.device_count()), job.config.trainer.devices
    return seen if job.config.target.device_map or asked == "auto" else int(asked)


def _plan_drafts(job: Job) -> dict[str, DraftPlan]:
    """By name: the configured draft that exists, if any, then every size to try."""
    plans: dict[str, DraftPlan] = {}
    if (folder := job.draft_folder) is not None:
        plans[folder.name] = plan_existing(job.target.folder, folder)
    for size in job.config.probe.drafts:
        plan = plan_draft(job.target.folder, DraftConfig(init="scratch", **plain(size)))
        plans[f"{plan.config.num_hidden_layers} × {plan.config.hidden_size}"] = plan
    for ids in _head_vocabularies(job):
        head = DraftConfig(init="eagle3", vocabulary=ids)
        plans[f"eagle3, {ids} ids"] = plan_head(job.target.folder, head)
    if not plans:
        raise UserError("probe.drafts is empty: give sizes, such as [{parameter_ratio:0.1}]")
    return plans


def _head_vocabularies(job: Job) -> list[int]:
    """Sizes of heads to try; none for a target that has too few layers to read."""
    target = text_config(job.target.folder)
    if target.num_hidden_layers < FEWEST_LAYERS:
        return []
    return [ids for ids in job.config.probe.head_vocabularies if ids <= target.vocab_size]


def _loads(job: Job, plans: Mapping[str, DraftPlan]) -> list[list[Prospect]]:
    asked, target = job.config.probe, job.target.load()
    drafts = {name: _load_or_make(job, name, plan, target) for name, plan in plans.items()}
    sampling = job.config.evaluate.samplings[0]
    settings = [
        Setting(batch, context, job.vocabulary_size, sampling)
        for batch, context in itertools.product(asked.batch_sizes, asked.context_lengths)
    ]
    found: list[list[Prospect]] = []
    for load in probe(target, drafts, settings, asked.num_draft_tokens, asked.timings):
        log.info("probe: %d of %d loads", len(found) + 1, len(settings))
        found.append(load)
    return found


def _load_or_make(
    job: Job, name: str, plan: DraftPlan, target: "PreTrainedModel"
) -> "PreTrainedModel":
    """The draft as it would be served: the target's dtype and device."""
    if job.draft_folder is not None and job.draft_folder.name == name:
        return job.load_draft(job.draft_folder, target)
    if is_head(plan.config):
        draft = random_head(plan, job.config.seed)
    else:
        draft = initialise_draft(plan, "scratch", Path(), job.config.seed)
    return draft.to(target.device, target.dtype).eval()  # pyright: ignore


def _report(job: Job, plans: Mapping[str, DraftPlan], loads: list[list[Prospect]]) -> str:
    every, asked = [prospect for load in loads for prospect in load], job.config.probe
    paper = bills_table(plans, asked.tokens, asked.teraflops)
    sentences = "".join(f"{advice(load)}\n" for load in loads)
    return f"{as_text(paper, 150)}{as_text(prospects_table(every, asked.alphas), 170)}{sentences}"
