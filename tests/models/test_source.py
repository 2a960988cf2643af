import subprocess
import sys

import pytest

from distill.errors import UserError
from distill.models import source
from distill.models.source import check_model_folder, resolve_model

pytestmark = pytest.mark.usefixtures("no_loading")


def test_folder_is_taken_as_it_is_and_home_is_expanded(tiny, target, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(target.parent))
    assert resolve_model(tiny.source("folder", "~/target"), tmp_path) == target
    check_model_folder(target, "target")


@pytest.mark.parametrize(
    ("kind", "id", "remedy"),
    [
        ("folder", "/no/such", "check the path"),
        ("gguf", "/no/such.gguf", "check the path"),
        ("ftp", "x", "use hub, folder, gguf, mlflow or embedded"),
        ("mlflow", "draft/1", "models:/NAME@ALIAS"),
    ],
)
def test_bad_sources_name_the_remedy(tiny, tmp_path, kind, id, remedy):
    with pytest.raises(UserError, match=remedy):
        resolve_model(tiny.source(kind, id), tmp_path)


def test_a_file_that_is_no_gguf_is_refused(tiny, tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match="not a GGUF file"):
        resolve_model(tiny.source("gguf", file), tmp_path)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("config.json", "name a Hugging Face model folder"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "AutoTokenizer"),
    ],
)
def test_incomplete_folders(target, name, remedy):
    (target / name).unlink()
    with pytest.raises(UserError, match=f"^target: .*{remedy}"):
        check_model_folder(target, "target")


def test_pickled_weights_only(target):
    (target / "model.safetensors").rename(target / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"safetensors are needed.*save_pretrained"):
        check_model_folder(target, "target")


def test_hub_offline_names_the_remedy(tiny, tmp_path, monkeypatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_args, **_kwargs):
        raise LocalEntryNotFoundError("no network\nat all")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    with pytest.raises(UserError, match=r"cannot fetch a/b .*\(no network\).*source=folder"):
        resolve_model(tiny.source("hub", "a/b"), tmp_path)


@pytest.mark.parametrize("trusted", [False, True])
def test_hub_fetches_code_only_when_trusted(tiny, tmp_path, monkeypatch, trusted):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    model = tiny.source("hub", "a/b")
    model.revision, model.trust_remote_code = "v2", trusted
    assert resolve_model(model, tmp_path) == tmp_path
    assert (asked["name"], asked["revision"]) == ("a/b", "v2")
    assert ("*.py" in asked["allow_patterns"]) is trusted


def test_gguf_is_converted_once_and_again_when_it_changes(tiny, tmp_path, monkeypatch):
    file, cache, calls = tmp_path / "m.gguf", tmp_path / "cache", []

    def convert(found, folder):
        calls.append(found)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr("distill.models.gguf.convert_gguf", convert)
    file.write_bytes(b"GGUF 1")
    first = resolve_model(tiny.source("gguf", file), cache)
    assert resolve_model(tiny.source("gguf", file), cache) == first
    assert len(calls) == 1
    file.write_bytes(b"GGUF 22")
    assert resolve_model(tiny.source("gguf", file), cache) != first
    assert len(calls) == 2


def test_a_failed_conversion_leaves_nothing(tiny, tmp_path, monkeypatch):
    def convert(_file, folder):
        (folder / "half").write_text("")
        raise OSError("disk full")

    monkeypatch.setattr("distill.models.gguf.convert_gguf", convert)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    cache = tmp_path / "cache"
    with pytest.raises(OSError, match="disk full"):
        resolve_model(tiny.source("gguf", tmp_path / "m.gguf"), cache)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_torch_is_not_imported_by_what_checks_run_first():
    code = (
        "import sys, distill.models.source, distill.models.identity, distill.models.vocabulary, "
        "distill.models.target, distill.models.plan; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("files", [[], ["MLmodel"], ["draft/model.safetensors"]])
def test_a_download_that_is_no_model_is_not_kept(tiny, tmp_path, monkeypatch, files):
    """It is refused, and asked for again the next time."""

    def download(artifact_uri, dst_path):
        for name in files:
            path = type(tmp_path)(dst_path) / name
            path.parent.mkdir(exist_ok=True)
            path.touch()

    monkeypatch.setattr("mlflow.artifacts.download_artifacts", download)
    monkeypatch.setattr(source, "_pin", lambda uri: (uri, "7"))
    for _ in range(2):
        with pytest.raises(UserError, match="no files of a model"):
            resolve_model(tiny.source("mlflow", "models:/d/1"), tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


def test_mlflow_alias_follows_its_version(tiny, target, tmp_path, monkeypatch):
    """An alias that moved is fetched anew; the same version is downloaded once."""
    fetched, version = [], {"now": "1"}

    def download(artifact_uri, dst_path):
        fetched.append(artifact_uri)
        (tmp_path / "x").mkdir(exist_ok=True)
        nested = type(target)(dst_path) / "draft"
        nested.mkdir()
        (nested / "config.json").write_text(version["now"])

    monkeypatch.setattr("mlflow.artifacts.download_artifacts", download)
    monkeypatch.setattr(source, "_pin", lambda _uri: (f"models:/d/{version['now']}", "7"))
    model = tiny.source("mlflow", "models:/d@champion")
    first = resolve_model(model, tmp_path / "cache")
    assert resolve_model(model, tmp_path / "cache") == first
    assert (first / "config.json").read_text() == "1"
    version["now"] = "2"
    assert (resolve_model(model, tmp_path / "cache") / "config.json").read_text() == "2"
    assert fetched == ["models:/d/1", "models:/d/2"]
