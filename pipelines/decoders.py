"""The engine inside training: decoding to measure, and rollouts to learn from."""

from typing import TYPE_CHECKING

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus
from distill.errors import UserError
from distill.models.target import context_length, eos_token_ids
from distill.pipelines.inputs import target_folder
from distill.training.callbacks.decoding import Decoding
from distill.training.on_policy import OnPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def decoding_callback(
    cfg: DictConfig, corpus: Artifact, target: "PreTrainedModel | None", vocabulary_size: int
) -> Decoding:
    """The callback of `trainer.decode_every`, for the first validation prompts.

    Raw text has no prompt of its own: its first tokens are one, as in the evaluation.
    """
    assert target is not None  # loaded whenever training decodes
    trainer = cfg.trainer
    longest = context_length(target_folder(cfg)) - trainer.decode_max_new_tokens
    rows = load_corpus(corpus.path)["validation"].to_list()
    prompts = [row["input_ids"][: row["prompt_length"] or cfg.data.prompt_tokens] for row in rows]
    prompts = [tokens for tokens in prompts if len(tokens) <= longest][: trainer.decode_prompts]
    if len(prompts) < trainer.decode_prompts:
        raise UserError(
            f"trainer.decode_prompts={trainer.decode_prompts}, but {len(prompts)} validation rows "
            "have a prompt that leaves room to decode: lower it, or raise data.validation_rows"
        )
    return Decoding(
        target,
        prompts,
        every=trainer.decode_every,
        num_draft_tokens=trainer.decode_num_draft_tokens,
        max_new_tokens=trainer.decode_max_new_tokens,
        eos_token_ids=eos_token_ids(target_folder(cfg)),
        vocabulary_size=vocabulary_size,
    )


def rollouts(
    cfg: DictConfig, target: "PreTrainedModel | None", vocabulary_size: int
) -> OnPolicy | None:
    """Who answers the rows of `data.on_policy`; None where there are none."""
    if not cfg.data.on_policy:
        return None
    return OnPolicy(
        share=cfg.data.on_policy,
        prompt_tokens=cfg.data.prompt_tokens,
        eos_token_ids=eos_token_ids(target_folder(cfg)),
        vocabulary_size=vocabulary_size,
        seed=cfg.seed,
        target=target if cfg.data.on_policy_by == "pair" else None,
    )
