"""Every group option and experiment composes, and every `_target_` takes what its file gives it."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import OmegaConf

import distill.conf
from distill import schema
from distill.cli import check_keys, check_targets

CONF = Path(distill.conf.__file__).parent
ADDED = ("hydra", "experiment", "study")
"""Not in the defaults list."""
GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir() and p.name not in ADDED)
OPTIONS = [(g, p.stem) for g in GROUPS for p in sorted((CONF / g).glob("*.yaml"))]
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
STUDIES = sorted(p.stem for p in (CONF / "study").glob("*.yaml"))


@pytest.fixture(autouse=True, scope="module")
def hydra():
    schema.register()
    with initialize_config_module("distill.conf", version_base="1.3"):
        yield


def check(overrides):
    cfg = compose("config", overrides)
    check_keys(cfg)
    check_targets(cfg)
    return cfg


@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_option_composes_and_binds(group, option):
    check([f"{group}={option}"])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment_is_a_delta_that_composes(name):
    cfg = check([f"+experiment={name}"])
    assert cfg.name == name
    assert len((CONF / "experiment" / f"{name}.yaml").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", STUDIES)
def test_part_of_the_study_changes_the_recipe_and_nothing_else(name):
    base, cfg = (
        check(["+experiment=recipe_study"]),
        check(["+experiment=recipe_study", f"+study={name}"]),
    )
    assert (base == cfg) == (name == "forward_kl")
    for same in ("name", "target", "budget", "evaluate", "schedule", "seed"):
        assert base[same] == cfg[same]


def test_every_experiment_file_is_tried():
    assert {"quickstart", "smollm2_chat"} <= set(EXPERIMENTS)
    assert len(EXPERIMENTS) >= 5


def test_divergences_and_their_mixtures_are_configured():
    asked = "objective.divergence={forward_kl:0.5,total_variation:2,cross_entropy:0.25}"
    mixture = instantiate(check([asked]).objective).mixture
    assert [(term.name, term.weight) for term in mixture.terms] == [
        ("forward_kl", 0.5), ("total_variation", 2),
    ]  # fmt: skip
    assert mixture.label_weight == 0.25
    (jsd,) = instantiate(check(["objective=jsd", "objective.beta=0.1"]).objective).mixture.terms
    assert (jsd.name, jsd.options) == ("jsd", (("beta", 0.1),))
    (lk,) = instantiate(check(["objective=lk", "objective.eta=1"]).objective).mixture.terms
    assert (lk.name, lk.options) == ("lk", (("eta", 1),))


def test_schema_and_files_agree_on_types():
    cfg = compose("config")
    OmegaConf.merge(OmegaConf.structured(schema.Config), OmegaConf.to_container(cfg))


# Our file completes an option of the plugin; where that is installed, Hydra remarks on it.
@pytest.mark.filterwarnings("ignore:[\\s\\S]*is validated against ConfigStore schema")
def test_slurm_launcher_asks_for_nodes_gpus_time_and_requeue():
    cfg = compose("config", ["hydra/launcher=submitit_slurm"], return_hydra_config=True)
    launcher = cfg.hydra.launcher
    assert {"nodes", "gpus_per_node", "timeout_min", "max_num_timeout"} <= set(launcher)
    assert launcher.additional_parameters.requeue is True
    assert launcher.nodes == cfg.trainer.num_nodes


def test_the_sizes_of_the_quickstart_rise_and_each_is_two_epochs():
    sizes = check(["+experiment=quickstart"]).plan.sizes
    assert len(sizes) >= 3
    rows = []
    for size in sizes:
        cfg = check(["+experiment=quickstart", f"plan.size={size}"])
        assert cfg.budget.tokens == 450 * cfg.data.train_rows
        rows.append(cfg.data.train_rows)
    assert rows == sorted(rows)
    assert check(["+experiment=quickstart"]).data.train_rows == rows[0]  # while none is chosen
