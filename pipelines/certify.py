"""Stage `certify`: proof that this pair decodes exactly, and that a fault would have shown."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.artifacts import Artifact
from distill.content import content
from distill.data.corpus import held_out_prompts
from distill.evaluate.exactness.certificate import certify
from distill.evaluate.exactness.greedy import GreedyRun
from distill.files import write_json, write_text
from distill.models.target import pick_dtype
from distill.pipelines.job import Job, Pair
from distill.pipelines.judge import Judged
from distill.pipelines.prepare import Corpus
from distill.speculative.drafter_for import drafter_for
from distill.speculative.round_length import draft_length
from distill.tracking.runs import Run
from distill.versions import versions

CERTIFICATE, SHORT = "certificate.json", "certificate.txt"


def run(job: Job, corpus: Corpus, judged: Judged | None) -> Artifact:
    """`certificate.json` and its short form, which is also printed.

    Raises:
        UserError: nothing to certify with.
        SystemExit: the certificate failed (status 1).
    """
    config = job.config
    prompts = held_out_prompts(corpus.path, config.certify.num_prompts)
    pair = job.pair(judged and judged.draft_folder)
    settings = {
        "certify": content(config.certify, "certify"),
        "num_draft_tokens": max(config.evaluate.num_draft_tokens),
        "confidence_threshold": config.evaluate.confidence_threshold,
        "half": _half(job),
        "draft": pair.draft.sha256,
        "target": pair.target.sha256,
        "eos_token_ids": job.target.eos_token_ids,
        "hardware": job.machine,
        "seed": config.seed,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        certificate = certify(
            _greedy_run(job, pair, prompts, "float32"),
            [_greedy_run(job, pair, prompts, _half(job))],
            samples=config.certify.samples,
            seed=config.seed,
        )
        weights = {
            "draft_weights_sha256": pair.draft.weights_sha256,
            "target_weights_sha256": pair.target.weights_sha256,
        }
        about = {"pair": {**settings, **weights}, "versions": versions()}
        write_json(folder / CERTIFICATE, {**certificate.record(), **about})
        write_text(folder / SHORT, certificate.text() + "\n")
        stage.log_folder(folder, "certificate")
        stage.log_tags({"distill.certified": str(certificate.passed).lower()})
        return {"passed": certificate.passed}

    certified = job.make("certify", settings, [corpus.artifact], produce)
    sys.stdout.write((certified.path / SHORT).read_text(encoding="utf-8"))
    sys.stdout.write(f"certificate: {certified.path / CERTIFICATE}\n")
    if not certified.counts["passed"]:
        sys.exit(1)
    return certified


def _half(job: Job) -> str:
    """The half precision that is served, else bfloat16."""
    served = str(pick_dtype(job.config.target.dtype, job.device)).removeprefix("torch.")
    return "bfloat16" if served == "float32" else served


def _greedy_run(job: Job, pair: Pair, prompts: list[list[int]], dtype: str) -> GreedyRun:
    target, draft = job.load_pair(pair, dtype)
    asked = job.config.evaluate
    return GreedyRun(
        target,
        drafter_for(draft, target),
        prompts,
        draft_length(max(asked.num_draft_tokens), asked.confidence_threshold),
        job.config.certify.max_new_tokens,
        job.target.eos_token_ids,
        pair.vocabulary_size,
    )
