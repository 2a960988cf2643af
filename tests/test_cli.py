"""What a user's mistake looks like: one line, the remedy in it, status 2."""

import shlex
import subprocess
import sys

import pytest
import yaml

from distill.cli import main
from distill.schema import VERBS


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["distill", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr().err  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("evaluate.marginn=2", "did you mean evaluate.margin?"),
        ("darft=svd", "did you mean draft?"),
        ("output=/tmp", "did you mean paths.output?"),
        ("draft=pruend", "did you mean pruned?"),
        ("+experiment=quikstart", "did you mean quickstart?"),
        ("objective.temprature=2", "did you mean objective.temperature?"),
        ("+draft.hiden_size=2", "did you mean draft.hidden_size?"),
        ("+objective.temprature=2", "did you mean objective.temperature?"),
        ("budget.tokens=many", "budget.tokens"),
        ("target=hub", "target.id"),
        ("data=jsonl", "data.source.path"),
        ("pipeline=trian", "did you mean train?"),
        ("pipeline=plan", "use pipeline=probe probe.measure=false"),
        ("draft=tenth", "use draft=svd"),
        ("evaluate.racing=true", "evaluate.max_candidates"),
        ("what=loss", "use benchmark.what"),
        ("+runs=[a,b]", "use compare.runs"),
        ("codecs.batches=2", "use pipeline=benchmark benchmark.what=signals"),
        ("objective.weighting=entropy", "leave it out"),
        ("name=../elsewhere", "one plain folder name"),
        ("name=/tmp/x", "one plain folder name"),
        ("seed=-1", "from 0 to 4294967295"),
        ("seed=4294967296", "from 0 to 4294967295"),
        ("generate.temperature=-1", "generate.temperature=-1"),
        ("tracking.registered_model=org/draft", "tracking.registered_model=org/draft"),
        ('tracking.registered_model="it\'s"', "no quotes"),
        ("tracking.alias=latest", "tracking.alias=latest"),
        ("tracking.alias=v2", "tracking.alias=v2"),
        ("+evaluate.samplings=[{temperature:-1}]", "temperature"),
        ("objective.temperature={_target_:shutil.copyfile}", "only at objective, signal"),
        ("+target.id={_target_:os.system}", "target.id"),
        ("objective._target_=shutil.copyfile", "it has no check"),
        ("signal._target_=pathlib.Path", "it has no check"),
    ],
)
def test_mistake_is_one_line_with_its_remedy(monkeypatch, capsys, tmp_path, argument, remedy):
    status, printed = run(monkeypatch, capsys, argument, f"paths.output={tmp_path}")
    assert status == 2
    assert remedy in printed
    assert printed.startswith("distill: ")
    assert len(printed.splitlines()) == 1


def test_help_does_not_import_torch():
    script = (
        "import sys, runpy\nsys.argv = ['distill', '--help']\n"
        "try:\n    runpy.run_module('distill', run_name='__main__')\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules and 'mlflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "Configuration groups" in done.stdout


def test_help_lists_every_group_and_its_options(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["distill", "--help"])
    main()
    printed = capsys.readouterr().out
    assert (
        "  experiment: llama_70b_sharded, llama_8b_pretrained, llama_8b_pruned, quickstart"
        in printed
    )
    assert "  draft: auto, eagle3, parallel, pretrained, pruned, ready, scratch, svd\n" in printed
    assert all(f"\n  {verb} " in printed for verb in VERBS)


@pytest.mark.parametrize(
    "path",
    [
        "数据.jsonl",
        "a=b@c.jsonl",
        "a,b.jsonl",
        "a{b.jsonl",
        "a(1).jsonl",
        "it's here.jsonl",
        'a"b,c.jsonl',
        'a\\"b,c.jsonl',
        "a,b\\",
    ],
)
def test_the_remedy_for_a_value_that_cannot_be_read_works_when_typed(monkeypatch, capsys, path):
    _, printed = run(monkeypatch, capsys, "data=jsonl", f"data.source.path={path}", "--cfg=job")
    words = shlex.split(printed.partition(", type ")[2].split("; for a list")[0])
    assert len(words) == 1
    assert composed(monkeypatch, capsys, "data=jsonl", *words)["data"]["source"]["path"] == path


@pytest.mark.parametrize(
    ("data", "typed"),
    [
        ("hub", "data.source.columns.prompt=question"),
        ("mixture", "data.source.parts.chat.source.evaluation_fraction=0.3"),
        ("mixture", "data.source.parts.more.weight=1"),
    ],
)
def test_the_remedy_for_a_name_of_the_users_own_works_when_typed(monkeypatch, capsys, data, typed):
    _, printed = run(monkeypatch, capsys, f"data={data}", typed, "--cfg=job")
    key = printed.strip().partition("to add it, type ")[2]
    found = composed(monkeypatch, capsys, f"data={data}", f"{key}={typed.partition('=')[2]}")
    for name in typed.partition("=")[0].split("."):
        found = found[name]
    assert str(found) == typed.partition("=")[2]


@pytest.mark.parametrize("name", ["evaluation_path", "validation_fraction", "max_characters"])
@pytest.mark.parametrize("data", ["jsonl", "hub"])
def test_every_setting_of_a_source_is_typed_without_a_sign(monkeypatch, capsys, data, name):
    name = "evaluation_split" if (data, name) == ("hub", "evaluation_path") else name
    found = composed(monkeypatch, capsys, f"data={data}", f"data.source.{name}=1")
    assert found["data"]["source"][name] == 1


def test_a_key_of_another_option_names_that_option(monkeypatch, capsys):
    _, printed = run(monkeypatch, capsys, "data=code", "data.source.path=x")
    assert "it is a key of data=jsonl" in printed


def composed(monkeypatch, capsys, *arguments: str) -> dict:
    monkeypatch.setattr(sys, "argv", ["distill", *arguments, "--cfg=job"])
    main()
    return yaml.safe_load(capsys.readouterr().out)
