"""Stage `prepare`: rows of the source, tokenised once, split three ways."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from transformers import AutoTokenizer

from distill.artifacts import Artifact
from distill.data.corpus import build_corpus
from distill.pipelines.inputs import plain, target_config, target_folder, target_identity
from distill.pipelines.self_prompt import open_source
from distill.pipelines.stage import as_job, run_stage
from distill.tracking.runs import Run

BATCHING = ("packing", "on_policy", "on_policy_by")


@as_job
def run(cfg: DictConfig) -> Artifact:
    """The corpus: `id, domain, input_ids, prompt_length` in train, validation and evaluation.

    Raises:
        UserError: the source cannot give a usable row (found out before anything is loaded).
    """
    source, written = open_source(cfg)
    target = target_identity(cfg)
    settings = {
        # How rows are batched later does not change them; a source is its content, not its place.
        "data": {k: v for k, v in plain(cfg.data).items() if k not in ("source", *BATCHING)},
        "source": source.fingerprint(),
        "tokenizer": target.tokenizer_sha256,
        "template": target.template_sha256,
        "system_prompt": cfg.target.system_prompt,
        "seed": cfg.seed,
    }

    def produce(folder: Path, _: Run) -> dict[str, Any]:
        tokenizer = AutoTokenizer.from_pretrained(target_folder(cfg))
        return build_corpus(source, tokenizer, cfg.data, target_config(cfg), folder, seed=cfg.seed)

    return run_stage(cfg, "prepare", settings, written, produce)
