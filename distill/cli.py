"""The command line: compose the configuration, make it typed, open the job, run what is asked for.

Only this file knows Hydra and OmegaConf.
"""

import difflib
import inspect
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from distill import schema
from distill.errors import UserError
from distill.process import settle
from distill.text import one_line

if TYPE_CHECKING:
    from distill.pipelines.job import Invocation, Job

CONF = Path(__file__).parent / "conf"
OF_HYDRA = {"hydra", "__pycache__"}
HELP = """\
python -m distill +experiment=NAME [KEY=VALUE ...]     the whole road
python -m distill pipeline=VERB [KEY=VALUE ...]        one stage, and what it reads
python -m distill -m ... KEY=A,B                       a sweep

Verbs:

{verbs}

Configuration groups (GROUP=OPTION; experiment and study with a plus):

{groups}

--cfg job prints the configuration that would run. Powered by Hydra: --hydra-help.
"""
OTHER_OUTPUT = "choose another place with paths.output=/some/folder"
OmegaConfOrHydra = (HydraException, OmegaConfBaseException)
CALLED = re.compile(r"objective|signal|data\.source(\.parts\.[^.]+\.source)*")
"""The nodes that name a class by `_target_`. Anywhere else the name of a callable is refused."""
NO_OPTION = re.compile(
    r"|null|[-+.\d]\S*|\{.*|\[\]|\[(.*,)?\s*(null|[-+.\d\[{][^,]*)\s*(,.*)?\]", re.DOTALL
)
"""Values that are no option of a group, nor a list of options."""
METHODS = {
    "objective": ("check", "__call__"),
    "signal": ("check", "check_objective", "cached"),
    "source": ("rows", "check", "fingerprint"),
}
"""What a class must have to stand at a node; a user's own class may."""


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
        check_groups(sys.argv[1:])
        _hydra_main()
    except UserError as error:
        sys.exit(_complain(str(error)))
    except OmegaConfOrHydra as error:
        sys.exit(_complain(explain(error)))
    except OSError as error:
        # Hydra makes the run's folder before any code of ours can check the place.
        if not {"runs", "sweeps"} & set(Path(error.filename or "").parts):
            raise
        sys.exit(_complain(f"cannot write to {error.filename} ({error.strerror}): {OTHER_OUTPUT}"))
    except SweepError as failed:
        sys.exit(_complain(str(failed), failed.status))
    except KeyboardInterrupt:
        sys.exit(_complain("stopped; the same command goes on from here", status=130))


def describe() -> str:
    """What `--help` prints. Hydra's own copies the schema once a group, which takes seconds."""
    folders = sorted(path for path in CONF.iterdir() if path.is_dir() and path.name not in OF_HYDRA)
    return HELP.format(
        verbs="\n".join(f"  {verb:<10} {what}" for verb, what in schema.VERBS.items()),
        groups="\n".join(
            f"  {folder.name}: {', '.join(sorted(path.stem for path in folder.glob('*.yaml')))}"
            for folder in folders
        ),
    )


@hydra.main(config_path="pkg://distill.conf", config_name="config", version_base="1.3")
def _hydra_main(cfg: DictConfig) -> None:
    if HydraConfig.get().mode is not RunMode.MULTIRUN:
        if status := _one_job(cfg):
            # Not an Exception: Hydra would put a line of its own before ours.
            sys.exit(status)
        return
    try:
        status = _one_job(cfg, of_sweep=True)
    except SystemExit as left:  # a verdict, such as a gate's; a signal ends the whole sweep
        if not isinstance(left.code, int) or left.code > 128:
            raise
        status = left.code
    if status:
        # An Exception: Hydra keeps it, does the other jobs, and raises it at the end.
        raise SweepError(status)


class SweepError(Exception):
    """A job of a sweep was refused or failed a gate; status: its own exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status

    def __str__(self) -> str:
        return "a job of the sweep failed, as said above; those that could finish have finished"


def _one_job(cfg: DictConfig, *, of_sweep: bool = False) -> int:
    """Check and run a job. Returns the exit status; a refusal is one line and 2."""
    try:
        config = typed(cfg)
        # Only here is anything heavy imported: composing and helping stay quick.
        from distill.pipelines.road import check, run

        job = open_door(config, _invocation())
        check(job)
        job = at_its_size(job, cfg)
    except UserError as error:
        if of_sweep:
            record_refusal(cfg, error)
        return _complain(str(error))
    try:
        run(job)
    except UserError as error:
        return _complain(str(error))
    return 0


def record_refusal(cfg: DictConfig, error: UserError) -> None:
    """Let a refused job of a sweep stand FAILED in MLflow beside the others.

    Nothing is recorded where the settings of the store are themselves what is refused.
    """
    from distill.tracking.runs import start_job

    with suppress(UserError, OmegaConfBaseException):
        declared = OmegaConf.structured(schema.TrackingConfig)
        tracking = OmegaConf.to_object(OmegaConf.merge(declared, cfg.tracking))
        config = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))
        place = Path(cfg.paths.output)
        with start_job(config, cast(schema.TrackingConfig, tracking), place, str(cfg.name)) as job:
            job.run.log_tags({"distill.refused": str(error)})
            raise error


def typed(cfg: DictConfig) -> schema.Config:
    """The composed configuration as dataclasses, every key and range checked.

    Raises:
        UserError: the first thing found, with its remedy.
    """
    check_keys(cfg)
    try:
        check_missing(cfg)
        check_targets(cfg)
        return cast(schema.Config, OmegaConf.to_object(cfg))
    except OmegaConfBaseException as error:  # of what an interpolation stands for
        raise UserError(explain(error)) from error


def open_door(config: schema.Config, invocation: "Invocation") -> "Job":
    """The job: its source, signal and objective are built here, once."""
    from distill.pipelines.job import Job

    return Job(
        config,
        source=build(config.data.source),
        signal=build(config.signal),
        objective=build(config.objective),
        invocation=invocation,
    )


def at_its_size(job: "Job", cfg: DictConfig) -> "Job":
    """The job at the size that fits this machine, where its configuration leaves that open."""
    from distill.pipelines import plan
    from distill.pipelines.road import check

    if not plan.is_open(job):
        return job
    jobs = {
        size: open_door(typed(_sized(cfg, size)), job.invocation) for size in job.config.plan.sizes
    }
    chosen = jobs[plan.choose(jobs)]
    check(chosen)
    return chosen


def _sized(cfg: DictConfig, size: str) -> DictConfig:
    return cast(DictConfig, OmegaConf.merge(cfg, {"plan": {"size": size}}))


def build(node: Any) -> Any:
    """The object that a node names by `_target_`, and those that its arguments name.

    Hydra's own `instantiate` would word a UserError of the class anew, and call any callable.
    """
    if isinstance(node, dict):
        given = {key: build(value) for key, value in node.items() if not key.startswith("_")}
        return hydra.utils.get_class(node["_target_"])(**given) if "_target_" in node else given
    return [build(one) for one in node] if isinstance(node, list) else node


def _invocation() -> "Invocation":
    from distill.pipelines.job import Invocation

    found = HydraConfig.get()
    own = (one.path for one in found.runtime.config_sources if one.provider == "command-line")
    return Invocation(Path(found.runtime.output_dir), tuple(found.overrides.task), tuple(own))


def check_keys(cfg: DictConfig) -> None:
    """Refuse keys that nothing would read; Hydra lets `+key=value` add them.

    Raises:
        UserError: naming the key and the nearest one that exists.
    """
    try:
        OmegaConf.merge(OmegaConf.structured(schema.Config), OmegaConf.to_container(cfg))
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error


def check_groups(arguments: list[str]) -> None:
    """Refuse a group that is given a value and no option: Hydra then fails with a traceback.

    Raises:
        UserError: naming the group's options.
    """
    for argument in arguments:
        group, _, value = argument.lstrip("+").partition("=")
        if (CONF / group).is_dir() and group.isidentifier() and NO_OPTION.fullmatch(value.strip()):
            options = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
            raise UserError(f"{argument}: {group} is a group, use one of {', '.join(options)}")


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
    """Let classes be named only where one belongs, and bind the node to its signature.

    Raises:
        UserError: `_target_` at another node; a class that is not there, lacks what the node needs,
            or takes no such argument.
    """
    for path, node in _target_nodes(OmegaConf.to_container(cfg), ""):
        if not CALLED.fullmatch(path):
            raise UserError(
                f"{path}._target_={node['_target_']}: a class is named only at objective, signal "
                "and data.source; give a plain value here"
            )
        target = _find_class(path, node["_target_"])
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
    if isinstance(error, OverrideParseException) and "=" in error.override:
        return unreadable(error.override)
    if found := re.match(r"Ambiguous value for argument '(.*)'\n", str(error)):
        return f"{unreadable(found[1])}; for a list, put it in brackets; for a sweep, add -m"
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = re.sub(
        r"\s*(To append to your config use \S+|full_key: \S+|(object|reference)_type=\S+)", "", text
    )
    text = re.sub(r"^UserError raised while resolving interpolation: ", "", text)
    cause = error.__cause__
    if cause is not None and str(cause) and str(cause).splitlines()[0] not in text:
        text = f"{text} ({str(cause).splitlines()[0]})"
    text = re.sub(r"\s*Config search path: .*", "", text)
    return f"{text}{_hint(text)}"


def unreadable(override: str) -> str:
    """Say how to type an override whose value holds signs of Hydra's own, quotes for the shell in.

    Quoted, only a backslash before a quote, and the quote itself, mean something else.
    """
    key, _, value = override.partition("=")
    inside = re.sub(r'(\\*)"', r'\1\1\\"', value)
    inside = re.sub(r"(\\+)$", r"\1\1", inside)
    typed = shlex.quote(f'{key}="{inside}"')
    return f"{override} cannot be read as it stands: as text, type {typed}"


def _hint(text: str) -> str:
    if option := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        group = CONF / option.group(1)
        if instead := removed(option.group(0).partition("'")[2].rstrip("'")):
            return f"; {instead}"
        return nearest(option.group(2), {path.stem for path in group.glob("*.yaml")})
    if key := re.search(r"override '([^']+)'|[Kk]ey '([^']+)'", text):
        name = (key.group(1) or key.group(2)).lstrip("+~")
        if instead := removed(name, text):
            return f"; {instead}"
        options = {option for option, key, _ in _file_keys() if key == name}
        if options:  # known, but not of the option that is chosen
            return f"; it is a key of {' and of '.join(sorted(options))}"
        if any(
            _is_open(key, value) and name.startswith(f"{key}.") for _, key, value in _file_keys()
        ):
            return f"; to add it, type +{name}"
        return nearest(name, {*_schema_keys(schema.Config), *(key for _, key, _ in _file_keys())})
    return ""


def removed(name: str, text: str = "") -> str | None:
    """What to use in place of a key that there was; None for any other.

    text: of the error, which names the whole key where `name` is its last part only.
    """
    for key, instead in schema.REMOVED.items():
        if name.startswith(f"{key}."):
            return f"{key} is gone: {instead}"
        last = key.rpartition(".")[2]
        if name == key or (name == last and re.search(rf"(?<![\w.]){re.escape(key)}\b", text)):
            return f"{key} is gone: {instead}"
    return None


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


def _is_open(key: str, value: Any) -> bool:
    """Whether it is a mapping with names of the user's own, as `data.source.columns`."""
    return isinstance(value, dict) and key.count(".") > 1


def _file_keys() -> Iterator[tuple[str, str, Any]]:
    """(`group=option`, key, value) of the `_target_` nodes, which only the files of conf/ name."""
    for path in CONF.rglob("*.yaml"):
        group, option = path.parent.name, f"{path.parent.name}={path.stem}"
        for key, value in yaml.safe_load(path.read_text()).items():
            yield option, f"{group}.{key}", value
            if isinstance(value, dict):
                yield from ((option, f"{group}.{key}.{name}", one) for name, one in value.items())


def _target_nodes(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from _target_nodes(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _target_nodes(value, f"{path}.{number}")


def _find_class(path: str, name: str) -> Any:
    try:
        found = hydra.utils.get_object(name)
    except (ImportError, ValueError, HydraException) as error:
        raise UserError(f"{path}._target_={name} cannot be imported: {error}") from error
    role = path.rpartition(".")[2]
    if lacking := [method for method in METHODS[role] if not hasattr(found, method)]:
        raise UserError(f"{path}._target_={name} is no {role}: it has no {', '.join(lacking)}")
    if not inspect.isclass(found):
        raise UserError(f"{path}._target_={name} is no class: name one")
    return found


def _complain(message: str, status: int = 2) -> int:
    sys.stderr.write(f"distill: {one_line(message)}\n")
    return status
