"""What can be refused before a model loads: combinations of settings, files, and this machine.

A range of one key is checked where the key is declared.
"""

from pathlib import Path

from distill.artifacts import make_writable
from distill.data.sources.self_prompted import self_prompted
from distill.errors import UserError
from distill.evaluate.candidates import is_registered
from distill.evaluate.prompts import PromptFile, check_batches
from distill.losses.divergence import check_unsoftened
from distill.models.head_plan import plan_made
from distill.models.parallel import check_mask, folder_mask
from distill.models.target import context_length
from distill.pipelines.benchmark import check_benchmark
from distill.pipelines.job import Job
from distill.pipelines.prepare import open_user_turn
from distill.pipelines.report import check_run_folder
from distill.ranks import is_rank_zero, processes
from distill.teacher.codecs import Hidden, Live
from distill.training.check import check_training

READ_ROWS = ("decoding", "training", "signals")
"""Benchmarks that read rows of the data."""
BEFORE_TRAINING = ("prepare", "generate", "cache", "benchmark")
"""Verbs that end before training: they need no budget."""


def check_job(job: Job) -> None:
    """Refuse a job that cannot work.

    Raises:
        UserError: the first thing found, with its remedy.
    """
    verb = job.config.pipeline
    make_writable(job.output)
    check_run_folder(job)
    _check_force(job)
    if verb == "train" and job.config.draft.init == "ready":
        raise UserError("draft=ready is never trained: train it further with draft=pretrained")
    if verb == "cache" and not job.signal.cached:
        raise UserError("signal=live keeps nothing: give signal=hidden, top_k or sampled")
    trained = job.trains or verb == "train"
    if trained:
        _check_training(job)
    _check_answers(job)
    if verb != "benchmark" or job.config.benchmark.what in READ_ROWS:
        _check_lengths(job, trained)
    job.source.check()
    if self_prompted(job.source):
        open_user_turn(job)
    _check_evaluation(job)
    if verb == "benchmark":
        check_benchmark(job)
    _ = job.vocabulary_size  # tokenizers that differ
    if trained and job.draft_folder is None:
        plan_made(job.target.folder, job.draft)


def _check_force(job: Job) -> None:
    """Ranks that start together cannot tell the old artifact from the one that replaces it.

    A rank that Lightning starts comes after the old one is gone.
    """
    if job.config.force and is_rank_zero() and (number := processes()) > 1:
        raise UserError(
            f"force=true with {number} processes: the others would go on with what the first one "
            f"deletes; delete the stage's folder in {job.output / 'artifacts'} instead"
        )


def _check_training(job: Job) -> None:
    config, data = job.config, job.config.data
    spends = config.pipeline not in BEFORE_TRAINING
    check_training(config.trainer, config.budget if spends else None)
    job.objective.check(job.signal)
    if job.reads:
        _check_head(job)
    _check_parallel(job)
    if not data.on_policy:
        return
    if job.signal.cached:
        raise UserError(
            "data.on_policy: the target must judge what the draft just wrote; use signal=live"
        )
    if config.trainer.strategy == "fsdp":
        raise UserError("data.on_policy decodes with the whole draft; use trainer=ddp")


def _check_head(job: Job) -> None:
    """Refuse what a head that reads the target cannot be trained with."""
    config = job.config
    if not isinstance(job.signal, Live | Hidden):
        raise UserError(
            "a head learns from whole distributions and reads the target's states: use signal=live "
            "or signal=hidden"
        )
    check_unsoftened(job.objective.temperature)
    if job.objective.mixture.label_weight:
        raise UserError(
            "objective: cross_entropy needs every label to be an id that the head covers; leave it "
            "out"
        )
    if config.data.on_policy:
        raise UserError(
            "data.on_policy: a head is unrolled on the target's text instead; set data.on_policy=0"
        )
    if config.trainer.compile:
        raise UserError("trainer.compile compiles a separate draft; set trainer.compile=false")


def _check_parallel(job: Job) -> None:
    """Refuse a mask token that is in use, and a parallel draft trained as another kind."""
    folder, steps = job.draft_folder, job.draft.parallel
    if steps is not None and job.reads:
        raise UserError("draft.parallel: a head that reads the target cannot; set it to null")
    if steps is not None:
        check_mask(folder or job.target.folder, job.mask_asked)
    elif folder is not None and folder_mask(folder) is not None:
        raise UserError(
            f"{folder.name} is a parallel draft: train it further as one, with draft.parallel=8"
        )


def _check_lengths(job: Job, trained: bool) -> None:
    """Refuse rows that the models' positions, or a micro-batch, cannot hold."""
    trainer, longest = job.config.trainer, job.config.data.max_length
    models = {"target": job.target.folder}
    if job.draft_folder is not None and trained:
        models["draft"] = job.draft_folder
    for role, folder in models.items():
        if longest > (context := context_length(folder)):
            raise UserError(
                f"data.max_length={longest}, but the {role}'s context holds {context} tokens: "
                f"set data.max_length={context}, or less"
            )
    limits = ("tokens_per_batch", "tokens_per_step")
    name, limit = min(((one, getattr(trainer, one)) for one in limits), key=lambda one: one[1])
    if trained and longest > limit:
        raise UserError(
            f"data.max_length={longest}, but trainer.{name}={limit}: a row of that length would "
            f"not fit; set data.max_length={limit}, or raise trainer.tokens_per_batch and "
            f"trainer.tokens_per_step to {longest}"
        )


def _check_answers(job: Job) -> None:
    if job.config.data.continued and not job.config.generate.enabled:
        raise UserError(
            "data.continued: nobody writes the text on; set generate.enabled=true, or "
            "data.continued=0"
        )


def _check_evaluation(job: Job) -> None:
    """Refuse an unknown domain, a file that is not there, a named draft of another tokenizer."""
    asked = job.config.evaluate
    file = None
    if asked.prompts is not None:
        file = PromptFile.read(Path(asked.prompts).expanduser())
    if asked.domains is not None or asked.floors:
        known = (
            {one.domain for one in job.source.rows() if one.split == "evaluation"}
            if file is None
            else file.domains()
        )
        for key, names in (("domains", asked.domains or []), ("floors", asked.floors)):
            if unknown := sorted({*names} - known):
                raise UserError(
                    f"evaluate.{key}: no prompt is of domain {unknown[0]!r}; "
                    f"there are {', '.join(sorted(known)) or 'none'}"
                )
    rows = job.config.data.evaluation_rows if file is None else file.count(asked.domains)
    check_batches(asked, min(rows, asked.num_prompts))
    places = [place for place in asked.candidates if not is_registered(place)]
    found, damaged = job.usable_drafts(places)
    if damaged and not found and len(places) == len(asked.candidates):
        raise damaged[0]
    for folder in found:
        job.shared_with(folder)
