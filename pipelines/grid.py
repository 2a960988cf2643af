"""The settings grid of an evaluation, and what of it can be refused before any work."""

from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from distill.errors import UserError
from distill.models.target import eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.candidates import named_folders
from distill.pipelines.inputs import plain, samplings, target_folder
from distill.pipelines.prompts import check_batches, known_domains, most_conversations

if TYPE_CHECKING:
    from distill.evaluate.measure import Bar, Grid
    from distill.evaluate.statistics import Bootstrap


def check_evaluation(cfg: DictConfig, source: Any) -> None:
    """Refuse an evaluation that cannot work.

    Raises:
        UserError: a value out of range, a list that is empty, an unknown domain, a file that is
            not there, or a named draft of another tokenizer.
    """
    asked = plain(cfg.evaluate)
    samplings(cfg)
    for name in ("num_draft_tokens", "batch_sizes", "contexts"):
        values = asked[name]
        if not values or min(values) < 1 or len(set(values)) < len(values):
            raise UserError(f"evaluate.{name}={values}: give values from 1 up, each once")
    if asked["contexts"] != sorted(asked["contexts"]):
        raise UserError(f"evaluate.contexts={asked['contexts']}: edges must rise")
    for name in ("num_prompts", "max_new_tokens", "max_candidates", "bootstrap"):
        if asked[name] < 1:
            raise UserError(f"evaluate.{name}={asked[name]}: give at least 1")
    if not 0 <= asked["confidence_threshold"] <= 1:
        raise UserError(
            f"evaluate.confidence_threshold={asked['confidence_threshold']}: a probability, 0 to 1"
        )
    _check_domains(cfg, source)
    check_batches(cfg, most_conversations(cfg))
    for folder in named_folders(cfg):
        shared_vocabulary(target_folder(cfg), folder)


def _check_domains(cfg: DictConfig, source: Any) -> None:
    filtered, floors = cfg.evaluate.domains, cfg.evaluate.floors
    if cfg.evaluate.prompts is None and filtered is None and not floors:
        return
    if filtered is not None and not filtered:
        raise UserError("evaluate.domains=[] leaves no prompt: null takes those of all domains")
    known = known_domains(cfg, source)
    for key, names in (("domains", filtered or []), ("floors", floors)):
        if unknown := sorted({*names} - known):
            raise UserError(
                f"evaluate.{key}: no prompt is of domain {unknown[0]!r}; "
                f"there are {', '.join(sorted(known)) or 'none'}"
            )
    if filtered is not None and (left := sorted({*floors} - {*filtered})):
        raise UserError(
            f"evaluate.floors: {left[0]!r} is not in evaluate.domains={list(filtered)}: add it "
            "there, or drop the floor"
        )


def make_grid(cfg: DictConfig, vocabulary: int) -> "Grid":
    from distill.evaluate.measure import Grid

    asked = cfg.evaluate
    return Grid(
        num_draft_tokens=list(asked.num_draft_tokens),
        samplings=samplings(cfg),
        batch_sizes=list(asked.batch_sizes),
        max_new_tokens=asked.max_new_tokens,
        eos_token_ids=eos_token_ids(target_folder(cfg)),
        vocabulary_size=vocabulary,
        seed=cfg.seed,
        contexts=list(asked.contexts),
        racing=_bootstrap(cfg) if asked.racing else None,
        confidence_threshold=asked.confidence_threshold,
    )


def make_bar(cfg: DictConfig) -> "Bar":
    from distill.evaluate.measure import Bar

    return Bar(_bootstrap(cfg), cfg.evaluate.margin, dict(cfg.evaluate.floors))


def _bootstrap(cfg: DictConfig) -> "Bootstrap":
    from distill.evaluate.statistics import Bootstrap

    return Bootstrap(cfg.evaluate.bootstrap, cfg.seed)
