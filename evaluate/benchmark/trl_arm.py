"""One run of TRL's GKD trainer for the training benchmark.

A script, run as `… FOLDER` in an environment that has TRL and not this package: it
imports nothing of ours.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.experimental.gkd import GKDConfig, GKDTrainer  # pyright: ignore[reportMissingImports]


class InOrder(GKDTrainer):
    """Takes the rows in their order."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(train_dataset or self.train_dataset)


class Starts(TrainerCallback):
    """Notes when each optimiser step begins."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seconds.append(time.perf_counter())


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch that learns from whole rows but their first token, which nothing predicts."""
    ids = torch.tensor([row["input_ids"] for row in rows])
    labels = ids.clone()
    labels[:, 0] = -100
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": labels,
        "prompts": ids[:, :1],
        "prompt_attention_mask": torch.ones_like(ids[:, :1]),
    }


def main(folder: Path) -> None:
    job = json.loads((folder / "job.json").read_text())
    rows = json.loads(Path(job["rows"]).read_text())
    steps = job["warmup"] + job["steps"] + 1
    needed = steps * job["batches_per_step"] * job["rows_per_batch"]
    rows = [rows[n % len(rows)] for n in range(needed)]
    dtype = torch.bfloat16 if job["half"] else torch.float32
    starts = Starts()
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(job["draft"], dtype=torch.float32),
        teacher_model=AutoModelForCausalLM.from_pretrained(job["target"], dtype=dtype),
        args=settings(job, folder, steps),
        data_collator=collate,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=AutoTokenizer.from_pretrained(job["target"]),
        callbacks=[starts],
    )
    trainer.train()
    trainer.model.save_pretrained(folder / "trained")
    versions = {package: version(package) for package in ("trl", "transformers", "torch")}
    told = {"starts": starts.seconds, "versions": versions}
    (folder / "run.json").write_text(json.dumps(told))


def settings(job: dict[str, Any], folder: Path, steps: int) -> GKDConfig:
    """Forward KL (beta 0) on the rows themselves (lmbda 0), memory not traded for time."""
    return GKDConfig(
        output_dir=str(folder),
        beta=0.0,
        temperature=1.0,
        lmbda=0.0,
        max_steps=steps,
        per_device_train_batch_size=job["rows_per_batch"],
        gradient_accumulation_steps=job["batches_per_step"],
        learning_rate=job["learning_rate"],
        adam_beta1=job["betas"][0],
        adam_beta2=job["betas"][1],
        weight_decay=0.0,
        max_grad_norm=job["gradient_clip"],
        lr_scheduler_type="constant",
        gradient_checkpointing=False,
        bf16=job["half"],
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
