"""Bad input: one clear line that names the remedy, before any model loads."""

import json
import shutil

import pytest

from .conftest import write_model


@pytest.fixture(autouse=True)
def no_loading(monkeypatch, target):
    """Asks for the target first: making it is not what is forbidden."""

    def fail(*_args, **_kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fail)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", fail)


@pytest.fixture
def refused(distill, capsys):
    def run(*arguments: str) -> str:
        capsys.readouterr()  # what making the test's models printed
        with pytest.raises(SystemExit) as stopped:
            distill(*arguments)
        printed = capsys.readouterr().err
        assert stopped.value.code == 2
        assert len(printed.splitlines()) == 1, printed
        return printed

    return run


@pytest.mark.parametrize(
    ("content", "remedy"),
    [(None, "does not exist"), ("", "empty"), ('{"prompt": ""}\nnot json\n', "line 1")],
)
def test_prompts_file(refused, tmp_path, content, remedy):
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_text(content)
    assert remedy in refused("data=jsonl", f"data.source.path={path}")


def test_draft_of_another_tokenizer(refused, tmp_path):
    other = write_model(tmp_path / "other", swap=True)
    said = refused("draft=ready", f"draft.model.id={other}", "pipeline=evaluate")
    assert "40" in said
    said = refused("draft=pretrained", "draft.model.source=folder", f"draft.model.id={other}")
    assert "40" in said


def test_ready_draft_is_not_trained(refused, target):
    said = refused("pipeline=train", "draft=ready", f"draft.model.id={target}")
    assert "draft=pretrained" in said


@pytest.mark.parametrize("pipeline", ["full", "evaluate", "plan", "probe"])
@pytest.mark.parametrize("init", ["pretrained", "ready", "sdv"])
def test_draft_that_is_not_named(refused, pipeline, init):
    said = refused(f"pipeline={pipeline}", f"draft.init={init}", "probe.context_lengths=[16]")
    assert f"draft.init={init}" in said


def test_named_candidates_do_not_excuse_a_training(refused, target):
    named = f"evaluate.candidates=[{target}]"
    assert "use forward_kl" in refused("pipeline=train", named, "signal=sampled", "objective=jsd")


def test_target_without_weights(refused, target, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(target, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    assert "no weights" in refused(f"target.id={bare}")


@pytest.mark.parametrize("ks", ["[0]", "[-1,2]", "[]"])
def test_k_below_one(refused, ks):
    assert "num_draft_tokens" in refused(f"evaluate.num_draft_tokens={ks}")


@pytest.mark.parametrize("threshold", ["-0.1", "1.5"])
def test_threshold_that_is_no_probability(refused, threshold):
    assert "confidence_threshold" in refused(f"evaluate.confidence_threshold={threshold}")


def test_output_that_cannot_be_written(refused, tmp_path):
    (tmp_path / "file").touch()
    assert "paths.output" in refused(f"paths.output={tmp_path / 'file'}")


@pytest.mark.parametrize("launcher", [{"WORLD_SIZE": "2", "RANK": "0"}, {"SLURM_NTASKS": "2"}])
def test_ranks_that_would_go_on_with_what_one_deletes(refused, monkeypatch, launcher):
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    assert "force=true with 2 processes" in refused("pipeline=train", "force=true")


def test_gpu_asked_for_and_absent(refused, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "trainer=cpu" in refused("trainer=gpu")


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["signal=sampled", "objective=jsd"], "use forward_kl"),
        (["signal=sampled", "objective=total_variation"], "use forward_kl"),
        (["signal=sampled", "objective=acceptance"], "use forward_kl"),
        (["signal=sampled", "objective=reverse_kl"], "use forward_kl"),
        (["signal=sampled", "objective=lk"], "use forward_kl"),
        (["objective.chunk_size=0"], "objective.chunk_size"),
        (["objective=jsd", "objective.beta=1"], "0 < beta < 1"),
        (["objective=lk", "objective.eta=-1"], "lk eta is -1"),
        (["signal=top_k", "signal.temperature=2.0"], "make them equal"),
        (["signal=top_k", "signal.k=0"], "at least 1"),
        (["objective.divergence=kl"], "forward_kl"),
        (["data.train_rows=-1"], "data.train_rows=-1: give values from 0 up"),
        (["pipeline=cache"], "signal=hidden"),
        (["signal=hidden", "data.on_policy=0.5"], "signal=live"),
        (["data.packing=true", "data.on_policy=0.5"], "data.packing=false"),
        (["data.on_policy=1.5"], "0 to 1"),
        (["data.continued=1.5"], "share of the windows"),
        (["data.continued=0.5", "generate.enabled=false"], "generate.enabled=true"),
        (["data.on_policy_by=target"], "draft, pair"),
    ],
)
def test_signal_that_cannot_be_learnt_from(refused, arguments, remedy):
    assert remedy in refused("pipeline=train", *arguments)


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["data.max_length=257"], ["257", "256"]),
        (["data.max_length=257", "pipeline=prepare"], ["257", "256"]),
        (["data.max_length=257", "draft=ready", "draft.model.id={target}"], ["257", "256"]),
        (["trainer.tokens_per_batch=48"], ["96", "trainer.tokens_per_batch=48"]),
        (["trainer.tokens_per_step=95"], ["96", "trainer.tokens_per_step=95"]),
        (["trainer.tokens_per_batch=48", "pipeline=train", "signal=hidden"], ["96", "48"]),
    ],
)
def test_rows_that_a_model_or_a_batch_cannot_hold(refused, target, arguments, numbers):
    said = refused(*(one.replace("{target}", str(target)) for one in arguments))
    assert all(number in said for number in numbers)


def test_answers_that_a_batch_cannot_hold_are_not_written(distill, capsys, prompts):
    """What the prompts are is known when they are tokenised, before the target loads."""
    data = ("data=jsonl", f"data.source.path={prompts}", "generate.max_new_tokens=120")
    with pytest.raises(SystemExit) as stopped:
        distill(*data, "pipeline=train")
    assert stopped.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "generate.max_new_tokens=120" in said
    assert "128" in said


def test_base_model_cannot_write_prompts(refused, target, tmp_path):
    base = tmp_path / "base"
    shutil.copytree(target, base, ignore=shutil.ignore_patterns("chat_template*"))
    assert "chat template" in refused(f"target.id={base}", "data=self_prompted")


def test_plan_needs_no_weights(distill, target, tmp_path, capsys):
    bare = tmp_path / "bare"
    shutil.copytree(target, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    distill(f"target.id={bare}", "pipeline=probe", "probe.measure=false")
    printed = capsys.readouterr().out
    assert "258 ids" in printed
    assert "in all, per device" in printed
    assert json.loads((bare / "config.json").read_text())["vocab_size"] == 258
