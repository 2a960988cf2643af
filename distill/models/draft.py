"""The draft: made from a plan, saved whole, loaded only if it is what its config says."""

import copy
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from distill.errors import UserError
from distill.files import whole_folder, write_json
from distill.models.code import allowed, auto_config, is_own_code
from distill.models.config import HEADS
from distill.models.eagle3 import is_head, load_head
from distill.models.folder import (
    copy_tokenizer,
    folder_is_head,
    model_json,
    safetensors_files,
    tensor_shapes,
)
from distill.models.importance import Calibration
from distill.models.plan import DraftPlan, build_meta
from distill.models.prune import prune
from distill.models.spelling import portable
from distill.models.svd import HeadStatistics, factorise
from distill.models.target import eos_token_ids, load_model

TEXT_PART = "language_model"
"""Of a model that sees pictures too: what its text part is called in files."""
INITS = ("scratch", "svd", "pruned")
"""What can be made from a plan."""
MADE_FROM_TARGET = ("svd", "pruned", *HEADS)
"""What needs the target's weights and rows to run it on."""


def initialise_draft(
    plan: DraftPlan,
    init: str,
    target_folder: Path,
    seed: int,
    statistics: HeadStatistics | None = None,
    calibration: Calibration | None = None,
) -> PreTrainedModel:
    """Make the draft of `plan`, float32 on the CPU, the same for the same seed.

    init: `scratch` is the family's own initialisation; `svd` then replaces embedding and head by
    projections of the target's (`distill.models.svd`), weighted by `statistics` where given;
    `pruned` replaces everything by parts of the target (`distill.models.prune`) and needs
    `calibration`. `pretrained` and `ready` drafts come from `load_draft`.
    """
    if init not in INITS:
        raise UserError(
            f"draft.init {init!r} cannot be made from a plan: use {' or '.join(INITS)}, or "
            "set draft.init=pretrained and draft.model."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(plan.config, dtype=torch.float32)
    if init == "svd":
        _project(model, target_folder, statistics)
    if init == "pruned":
        if calibration is None:
            raise ValueError("a pruned draft needs calibration: the target and rows to run it on")
        prune(model, calibration)
    return model


@torch.no_grad()
def _project(
    model: PreTrainedModel, target_folder: Path, statistics: HeadStatistics | None
) -> None:
    """Fill embedding and head from the target's.

    Each keeps the target matrix's root mean square: a scale that trained weights of the family
    have, whatever the projection did to it. The final norm's gain stays 1.
    """
    embedding, head = (weight for _, weight in _ends(model))
    target_embedding, target_head = _read_ends(target_folder)
    head.copy_(_at_scale(factorise(target_head, head.shape[1], statistics).rows, target_head))
    if embedding is not head:
        rows = factorise(target_embedding, embedding.shape[1], _counts_only(statistics)).rows
        embedding.copy_(_at_scale(rows, target_embedding))


def _at_scale(rows: Tensor, like: Tensor) -> Tensor:
    return rows * (like.double().square().mean() / rows.square().mean()).sqrt()


def _counts_only(statistics: HeadStatistics | None) -> HeadStatistics | None:
    """Input rows meet no final hidden state: weigh them by frequency alone."""
    if statistics is None:
        return None
    return HeadStatistics(
        statistics.token_counts, torch.eye(len(statistics.second_moment), dtype=torch.float64)
    )


def _ends(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return (name, weight) of the embedding and of the head."""
    named = dict(model.named_parameters(remove_duplicate=False))
    modules = {id(module): name for name, module in model.named_modules()}
    ends = (model.get_input_embeddings(), model.get_output_embeddings())  # pyright: ignore[reportCallIssue]
    names = [f"{modules[id(module)]}.weight" for module in ends]
    return [(name, named[name]) for name in names]


def _read_ends(folder: Path) -> list[Tensor]:
    """Read the target's embedding and head [V, D], and nothing else of it."""
    embedding, head = _stored_ends(folder, build_meta(auto_config(folder)))
    if embedding is None:
        raise UserError(f"{folder} has no embedding weights: fetch the model again.")
    return [_read_tensor(folder, name) for name in (embedding, head or embedding)]


def _stored_ends(folder: Path, model: nn.Module) -> list[str | None]:
    """Return the stored names of embedding and head.

    A base model's file leaves its prefix out. Files of models that see pictures too, written for
    transformers 4, put the text part before the prefix.
    """
    stored = tensor_shapes(folder)
    prefix = f"{model.base_model_prefix}."
    found: list[str | None] = []
    for name, _ in _ends(model):
        bare = name.removeprefix(prefix)
        part, _, rest = bare.partition(".")
        spellings = (name, bare, f"{part}.{prefix}{rest}", f"{TEXT_PART}.{name}")
        found.append(next((spelling for spelling in spellings if spelling in stored), None))
    return found


def _read_tensor(folder: Path, name: str) -> Tensor:
    for path in safetensors_files(folder):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118  # safe_open is no mapping
                return file.get_tensor(name)
    raise KeyError(name)


def save_draft(
    model: PreTrainedModel, folder: Path, target_folder: Path, dtype: torch.dtype | None = None
) -> None:
    """Write a folder that servers load as it is; it appears whole or not at all.

    Weights (in `dtype`, default the model's), config, the target's tokenizer and chat template byte
    for byte, generation_config with the target's EOS list. UserError: see `check_tied`.
    """
    dtype = dtype or model.dtype
    config = copy.deepcopy(model.config)
    config.dtype = dtype
    if not is_head(config):
        (_, embedding), (_, head) = _ends(model)
        check_tied(config.tie_word_embeddings, same=embedding is head, place="the draft")
        config.architectures = [type(model).__name__]
    with whole_folder(folder) as partial:
        config.save_pretrained(partial)
        if not is_own_code(config):
            write_json(partial / "config.json", portable(model_json(partial, "config.json")))
        save_file(_own_tensors(model, dtype), partial / "model.safetensors", {"format": "pt"})
        copy_tokenizer(target_folder, partial)
        generation = _generation_config(target_folder)
        write_json(partial / "generation_config.json", dict(sorted(generation.items())))


def _own_tensors(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Every stored tensor once: a tied head is under the embedding's name only."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            cast = dtype if tensor.is_floating_point() else tensor.dtype
            tensors[name] = tensor.detach().to("cpu", cast).contiguous()
    return tensors


def _generation_config(target_folder: Path) -> dict:
    """The target's tokens, its EOS as a list: the draft stops as the target does.

    How to sample is not among it: that is the target's to say, and transformers would take a
    draft's own temperature for one that the caller did not name.
    """
    generation = model_json(target_folder, "generation_config.json")
    tokens = {name: value for name, value in generation.items() if name.endswith("_token_id")}
    return tokens | {"eos_token_id": list(eos_token_ids(target_folder))}


def load_draft(
    folder: Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
) -> PreTrainedModel:
    """Load a draft in eval mode; its rotary tables stay float32 (`model.to(dtype)` rounds them).

    UserError: missing weights, or a head that is not tied as the config says.
    """
    if folder_is_head(folder):
        return load_head(folder, dtype=dtype, device=device)
    config = auto_config(folder)
    embedding, head = _stored_ends(folder, build_meta(config, trust_remote_code=allowed(folder)))
    tied = config.get_text_config(decoder=True).tie_word_embeddings
    if embedding is None or head is None:
        check_tied(tied, same=head is None, place=str(folder))
    elif tied:
        same = torch.equal(_read_tensor(folder, embedding), _read_tensor(folder, head))
        check_tied(tied, same=same, place=str(folder))
    model = load_model(folder, dtype=dtype)
    return model.to(device).eval()  # pyright: ignore[reportArgumentType, reportCallIssue]


def check_tied(tied: bool, *, same: bool, place: str) -> None:
    """Refuse a config that says tied over two matrices, or untied over one (case EX-TIED).

    Loading would drop the trained head in the first case and draw a random one in the second.
    """
    if tied and not same:
        raise UserError(
            f"{place} is configured as tied but its head is not its embedding: "
            "set tie_word_embeddings to false in its config.json."
        )
    if not tied and same:
        raise UserError(
            f"{place} is configured as untied but has one matrix for embedding and head: "
            "set tie_word_embeddings to true in its config.json."
        )
