"""What a user's mistake looks like: one line, the remedy in it, status 2."""

import subprocess
import sys

import pytest

from distill.cli import main


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["distill", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code, capsys.readouterr().err  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ("evaluate.marginn=2", "did you mean evaluate.margin?"),
        ("darft=tenth", "did you mean draft?"),
        ("output=/tmp", "did you mean paths.output?"),
        ("draft=tenht", "did you mean tenth?"),
        ("+experiment=quikstart", "did you mean quickstart?"),
        ("objective.temprature=2", "did you mean objective.temperature?"),
        ("+draft.hiden_size=2", "did you mean draft.hidden_size?"),
        ("+objective.temprature=2", "did you mean objective.temperature?"),
        ("budget.tokens=many", "budget.tokens"),
        ("target=hub", "target.id"),
        ("data=jsonl", "data.source.path"),
        ("pipeline=trian", "did you mean train?"),
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
    assert "  draft: pretrained, pruned, ready, scratch, tenth\n" in printed
    assert "evaluate" in printed.split("  pipeline: ")[1].splitlines()[0]
