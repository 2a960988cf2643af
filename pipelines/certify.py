"""Stage `certify`: proof that this pair decodes exactly, and that a fault would have shown."""

import logging
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact, write_json
from distill.evaluate.divergence import GreedyRun
from distill.evaluate.exactness import certify
from distill.models.target import eos_token_ids, pick_dtype
from distill.pipelines import prepare
from distill.pipelines.inputs import check_at_least, device, machine, plain, target_folder
from distill.pipelines.pair import Pair, find_pair, held_out
from distill.pipelines.stage import as_job, run_stage
from distill.speculative.drafters import ModelDrafter
from distill.speculative.round_length import draft_length
from distill.tracking.runs import Run
from distill.versions import versions

log = logging.getLogger(__name__)
CERTIFICATE, SHORT = "certificate.json", "certificate.txt"


@as_job
def run(cfg: DictConfig) -> Artifact:
    """`certificate.json` and its short form, which is also printed.

    Raises:
        UserError: nothing to certify with.
        SystemExit: the certificate failed (status 1).
    """
    check_at_least(1, "certify", plain(cfg.certify))
    corpus = prepare.run(cfg)
    prompts = held_out(corpus, cfg.certify.prompts)
    pair = find_pair(cfg)
    settings = {
        "certify": plain(cfg.certify),
        "num_draft_tokens": max(cfg.evaluate.num_draft_tokens),
        "confidence_threshold": cfg.evaluate.confidence_threshold,
        "half": _half(cfg),
        "draft": pair.draft_sha256,
        "target": pair.target_sha256,
        "eos_token_ids": eos_token_ids(target_folder(cfg)),
        "hardware": machine(cfg),
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        certificate = certify(
            _greedy_run(cfg, pair, prompts, "float32"),
            [_greedy_run(cfg, pair, prompts, _half(cfg))],
            samples=cfg.certify.samples,
            seed=cfg.seed,
            progress=lambda name: log.info("certify: %s", name),
        )
        weights = {
            "draft_weights_sha256": pair.draft_weights_sha256,
            "target_weights_sha256": pair.target_weights_sha256,
        }
        about = {"pair": {**settings, **weights}, "versions": versions()}
        write_json(folder / CERTIFICATE, {**certificate.record(), **about})
        (folder / SHORT).write_text(certificate.text() + "\n", encoding="utf-8")
        stage.log_folder(folder, "certificate")
        stage.log_tags({"distill.certified": str(certificate.passed).lower()})
        return {"passed": certificate.passed}

    certified = run_stage(cfg, "certify", settings, [corpus], produce)
    sys.stdout.write((certified.path / SHORT).read_text(encoding="utf-8"))
    sys.stdout.write(f"certificate: {certified.path / CERTIFICATE}\n")
    if not certified.counts["passed"]:
        sys.exit(1)
    return certified


def _half(cfg: DictConfig) -> str:
    """The half precision that is served, else bfloat16."""
    served = str(pick_dtype(cfg.target.dtype, device(cfg))).removeprefix("torch.")
    return "bfloat16" if served == "float32" else served


def _greedy_run(cfg: DictConfig, pair: Pair, prompts: list[list[int]], dtype: str) -> GreedyRun:
    target, draft = pair.load(cfg, dtype)
    return GreedyRun(
        target,
        ModelDrafter(draft),
        prompts,
        draft_length(max(cfg.evaluate.num_draft_tokens), cfg.evaluate.confidence_threshold),
        cfg.certify.max_new_tokens,
        eos_token_ids(target_folder(cfg)),
        pair.vocabulary_size,
    )
