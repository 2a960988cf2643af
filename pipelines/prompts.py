"""What an evaluation decodes: held-out rows of the data, or the rows of a file of prompts."""

import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from transformers import AutoTokenizer

from distill.data import chat
from distill.data.corpus import load_corpus, load_turns
from distill.data.encode import Encoder
from distill.data.sources.jsonl import read_records
from distill.data.sources.rows import Chat, Completion, Document, Problem, Row
from distill.data.sources.splits import stable_hash
from distill.data.sources.table import Table, refuse_without_rows, row
from distill.errors import UserError
from distill.evaluate.conversations import Conversation, spread, unroll
from distill.evaluate.load import stream
from distill.evaluate.records import Prompt
from distill.models.target import context_length, eos_token_ids
from distill.pipelines import prepare
from distill.pipelines.inputs import plain, samplings, target_config, target_folder
from distill.schema import DataConfig
from distill.speculative.decode import decode

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
MAX_CHARACTERS = 500_000
NO_LIMIT = 2**31
"""Prompts are not cut: one that the context cannot hold is left out, and counted."""


def known_domains(cfg: DictConfig, source: Any) -> set[str]:
    """The domains of all rows that could be decoded. Nothing is tokenized."""
    if cfg.evaluate.prompts is not None:
        return {one.domain for one in _read(cfg)[0]}
    return {one.domain for one in source.rows() if one.split == "evaluation"}


def most_conversations(cfg: DictConfig) -> int:
    """More than so many are never decoded. Nothing is tokenized."""
    if cfg.evaluate.prompts is None:
        return min(cfg.data.evaluation_rows, cfg.evaluate.num_prompts)
    wanted = cfg.evaluate.domains
    rows = [one for one in _read(cfg)[0] if wanted is None or one.domain in wanted]
    return min(len(rows), cfg.evaluate.num_prompts)


def check_batches(cfg: DictConfig, conversations: int) -> None:
    """UserError for a batch size that so many conversations cannot fill even once."""
    if (largest := max(cfg.evaluate.batch_sizes)) > conversations:
        raise UserError(
            f"evaluate.batch_sizes has {largest}, and {conversations} prompts are decoded: no "
            "batch would be that large; lower it, or raise evaluate.num_prompts and what they are "
            "taken from (data.evaluation_rows or evaluate.prompts)"
        )


def find_conversations(cfg: DictConfig) -> tuple[list[Conversation], int]:
    """Those to decode, with their first prompts, and how many were too long for the target.

    Raises:
        UserError: none is left, too few for a batch, or a domain that has a floor has none.
    """
    wanted, limit = cfg.evaluate.domains, context_length(target_folder(cfg))
    found = _held_out(cfg) if cfg.evaluate.prompts is None else _from_file(cfg)
    of_domains = [one for one in found if wanted is None or one.domain in wanted]
    fitting = [one for one in of_domains if len(one.tokens) < limit]
    too_long = len(of_domains) - len(fitting)
    if too_long:
        log.warning("evaluate: %d prompts are longer than %d tokens: left out", too_long, limit)
    chosen = spread(fitting, cfg.evaluate.num_prompts)
    if not chosen:
        raise UserError(
            f"no prompts are left to decode ({too_long} too long, domains {wanted or 'all'}): "
            "widen evaluate.domains, or give more with evaluate.prompts or data.evaluation_rows"
        )
    check_batches(cfg, len(chosen))
    check_floors(cfg, {one.domain for one in chosen})
    return chosen, too_long


def check_floors(cfg: DictConfig, decoded: Collection[str]) -> None:
    """UserError for a floor whose domain is not among those decoded."""
    if bare := sorted({*cfg.evaluate.floors} - {*decoded}):
        raise UserError(
            f"evaluate.floors names {bare[0]!r}, and none of its prompts is decoded: raise "
            "evaluate.num_prompts or drop the floor"
        )


def all_turns(
    cfg: DictConfig,
    target: "PreTrainedModel",
    conversations: list[Conversation],
    vocabulary: int,
) -> dict[str, Any]:
    """JSON: `prompts` (fields of `Prompt`), `too_long` and `unusable` (turns left out).

    Later turns hold the target's own answers.
    """
    tokenizer = AutoTokenizer.from_pretrained(target_folder(cfg))
    size = max(cfg.evaluate.batch_sizes)

    def answer(prompts: list[Prompt]) -> list[str]:
        tokens: list[list[int]] = []
        for start in range(0, len(prompts), size):
            batch = prompts[start : start + size]
            tokens += decode(
                target,
                [prompt.tokens for prompt in batch],
                sampling=samplings(cfg)[0],
                max_new_tokens=cfg.evaluate.max_new_tokens,
                eos_token_ids=eos_token_ids(target_folder(cfg)),
                seed=cfg.seed,
                row_ids=[stream(prompt) for prompt in batch],
                vocabulary_size=vocabulary,
            ).tokens
            log.info("evaluate: answered %d of %d turns", len(tokens), len(prompts))
        return tokenizer.batch_decode(tokens, skip_special_tokens=True)

    def render(messages: Any) -> list[int]:
        return chat.prompt_ids(messages, tokenizer, plain(cfg.target.chat_template_kwargs))

    found = unroll(conversations, answer, render, context_length(target_folder(cfg)))
    if found.too_long:
        log.warning("evaluate: %d later turns would fill the context: left out", found.too_long)
    for reason, number in found.unusable.items():
        log.warning("evaluate: %d later turns left out: %s", number, reason)
    return {
        "prompts": [vars(prompt) for prompt in found.prompts],
        "too_long": found.too_long,
        "unusable": found.unusable.total(),
    }


def tally(
    conversations: list[Conversation], unrolled: Mapping[str, Any], too_long: int
) -> dict[str, Any]:
    """What `find_conversations` and `all_turns` found, in numbers."""
    return {
        "conversations": len(conversations),
        "turns": len(unrolled["prompts"]),
        "too_long": too_long + unrolled["too_long"],
        "unusable": unrolled["unusable"],
        "domains": dict(sorted(Counter(one.domain for one in conversations).items())),
    }


def _held_out(cfg: DictConfig) -> Iterator[Conversation]:
    folder = prepare.run(cfg).path
    turns = load_turns(folder)
    for found in load_corpus(folder)["evaluation"].to_list():
        prompt = list(found["input_ids"][: found["prompt_length"]])
        yield Conversation(found["id"], found["domain"], prompt, **turns.get(found["id"], {}))


def _from_file(cfg: DictConfig) -> Iterator[Conversation]:
    data = replace(DataConfig(**plain(cfg.data)), max_length=NO_LIMIT)
    encoder = Encoder(AutoTokenizer.from_pretrained(target_folder(cfg)), data, target_config(cfg))
    rows, problems = _read(cfg)
    for problem in problems:
        log.warning("evaluate.prompts: %s", problem)
    for one in sorted(rows, key=lambda one: (stable_hash(one.id), one.id)):
        content = one.content
        text = isinstance(content, Document)
        whole = replace(one, content=Completion(content.text)) if text else one
        for example in encoder.examples(whole):
            length = data.prompt_tokens if text else example.prompt_length
            yield Conversation(
                example.id,
                example.domain,
                example.input_ids[:length].tolist(),
                *_going_on(cfg, one),
            )
    for reason, number in encoder.dropped.items():
        log.warning("evaluate.prompts: %d left out: %s", number, reason)


def _going_on(cfg: DictConfig, one: Row) -> tuple[list[chat.Message], tuple[str, ...]]:
    if not isinstance(one.content, Chat) or not one.content.follow_ups:
        return [], ()
    messages = chat.with_system(one.content.messages, cfg.target.system_prompt)
    return messages, one.content.follow_ups


def _read(cfg: DictConfig) -> tuple[list[Row], list[Problem]]:
    path = Path(cfg.evaluate.prompts).expanduser()
    if not path.is_file():
        raise UserError(f"{path} does not exist: give evaluate.prompts a JSONL file")
    table = Table(MAX_CHARACTERS)
    entries = table.read(str(path), read_records(path))
    refuse_without_rows(str(path), entries, table.problems)
    return [row(entry, "evaluation") for entry in entries], table.problems
