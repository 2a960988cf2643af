"""The command line: compose the configuration, refuse what cannot work, run the pipeline."""

import difflib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import hydra
import yaml
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distill import schema
from distill.errors import UserError
from distill.process import settle

CONF = Path(__file__).parent / "conf"
OF_HYDRA = {"hydra", "__pycache__"}
HELP = """\
python -m distill +experiment=NAME [KEY=VALUE ...]     the whole road
python -m distill pipeline=STAGE [KEY=VALUE ...]       one stage, and what it reads
python -m distill -m ... KEY=A,B                       a sweep

Configuration groups (GROUP=OPTION; experiment and study with a plus):

{groups}

--cfg job prints the configuration that would run. Powered by Hydra: --hydra-help.
"""
OTHER_OUTPUT = "choose another place with paths.output=/some/folder"
OmegaConfOrHydra = (HydraException, OmegaConfBaseException)


def main() -> None:
    """Entry point. A mistake of the user's is one line on stderr and exit status 2."""
    if {"-h", "--help"} & {*sys.argv[1:]}:
        sys.stdout.write(describe())
        return
    settle()
    schema.register()
    # Hydra then raises instead of printing, and the one place that words errors is here.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    # Nothing here forks after tokenizing; without this the tokenizers library warns about it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        _hydra_main()
    except OmegaConfOrHydra as error:
        sys.exit(_complain(explain(error)))
    except OSError as error:
        # Hydra makes the run's folder before any code of ours can check the place.
        if not {"runs", "sweeps"} & set(Path(error.filename or "").parts):
            raise
        sys.exit(_complain(f"cannot write to {error.filename} ({error.strerror}): {OTHER_OUTPUT}"))
    except KeyboardInterrupt:
        sys.exit(_complain("stopped; the same command goes on from here", status=130))


def describe() -> str:
    """What `--help` prints. Hydra's own copies the schema once a group, which takes seconds."""
    folders = sorted(path for path in CONF.iterdir() if path.is_dir() and path.name not in OF_HYDRA)
    return HELP.format(
        groups="\n".join(
            f"  {folder.name}: {', '.join(sorted(path.stem for path in folder.glob('*.yaml')))}"
            for folder in folders
        )
    )


@hydra.main(config_path="pkg://distill.conf", config_name="config", version_base="1.3")
def _hydra_main(cfg: DictConfig) -> None:
    try:
        check_keys(cfg)
        check_missing(cfg)
        check_targets(cfg)
        # Only here is anything heavy imported: composing and helping stay quick.
        hydra.utils.get_method(cfg.pipeline["_target_"])(cfg)
    except UserError as error:
        # Not an Exception: Hydra would put a line of its own before ours.
        sys.exit(_complain(str(error)))


def check_keys(cfg: DictConfig) -> None:
    """Refuse keys that nothing would read; Hydra lets `+key=value` add them.

    Raises:
        UserError: naming the key and the nearest one that exists.
    """
    try:
        OmegaConf.merge(OmegaConf.structured(schema.Config), OmegaConf.to_container(cfg))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error


def check_missing(cfg: DictConfig) -> None:
    """Refuse values that the chosen groups leave to the user.

    Raises:
        UserError: naming the keys to set.
    """
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise UserError(
            f"not set: {', '.join(missing)}; give each on the command line, as key=value"
        )


def check_targets(cfg: DictConfig) -> None:
    """Bind every node that names a callable to that callable's signature.

    Raises:
        UserError: the callable is not there, or takes no such argument.
    """
    for path, node in _target_nodes(OmegaConf.to_container(cfg), ""):
        target = _find(path, node["_target_"])
        given = {key: value for key, value in node.items() if not key.startswith("_")}
        allowed = inspect.signature(target).parameters
        if any(p.kind is p.VAR_KEYWORD for p in allowed.values()):
            continue
        for key in given:
            if key not in allowed:
                hint = nearest(f"{path}.{key}", {f"{path}.{name}" for name in allowed})
                raise UserError(f"{path}.{key} is not an argument of {node['_target_']}{hint}")


def explain(error: Exception) -> str:
    """One line for an error of composition, with the nearest name where a name is wrong."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = re.sub(r"\s*(To append to your config use \S+|full_key: \S+|object_type=\S+)", "", text)
    cause = error.__cause__
    if cause is not None and str(cause) and str(cause).splitlines()[0] not in text:
        text = f"{text} ({str(cause).splitlines()[0]})"
    text = re.sub(r"\s*Config search path: .*", "", text)
    return f"{text}{_hint(text)}"


def _hint(text: str) -> str:
    if option := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group = CONF / option.group(1)
        return nearest(option.group(2), {path.stem for path in group.glob("*.yaml")})
    if key := re.search(r"override '([^']+)'|[Kk]ey '([^']+)'", text):
        return nearest(key.group(1) or key.group(2), {*_schema_keys(schema.Config), *_file_keys()})
    return ""


def nearest(name: str, known: Mapping[str, Any] | set[str]) -> str:
    """A hint, `; did you mean …?`, or nothing when no known name is close.

    Names are compared by their last part and told in full: the place is often what was forgotten.
    """
    last = {full: full.rpartition(".")[2] for full in known}
    close = difflib.get_close_matches(name.rpartition(".")[2], set(last.values()), n=1)
    alike = [full for full in known if last[full] in close]
    best = max(sorted(alike), key=lambda full: _likeness(full, name), default=None)
    return f"; did you mean {best}?" if best else ""


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _schema_keys(config: type, place: str = "") -> Iterator[str]:
    for field in fields(config):
        yield f"{place}{field.name}"
        for kind in (field.type, *get_args(field.type)):
            if isinstance(kind, type) and is_dataclass(kind):
                yield from _schema_keys(kind, f"{place}{field.name}.")


def _file_keys() -> Iterator[str]:
    """Arguments of the `_target_` nodes, which only the files of conf/ name."""
    for path in CONF.rglob("*.yaml"):
        group = path.parent.name
        for key, value in yaml.safe_load(path.read_text()).items():
            yield f"{group}.{key}"
            if isinstance(value, dict):
                yield from (f"{group}.{key}.{name}" for name in value)


def _target_nodes(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _target_nodes(value, f"{path}.{key}" if path else str(key))


def _find(path: str, name: str) -> Any:
    try:
        return hydra.utils.get_object(name)
    except (ImportError, ValueError, HydraException) as error:
        raise UserError(f"{path}._target_={name} cannot be imported: {error}") from error


def _complain(message: str, status: int = 2) -> int:
    sys.stderr.write(f"distill: {message}\n")
    return status
