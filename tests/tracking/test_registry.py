import json

import pytest

from distill.errors import UserError
from distill.models.source import resolve_model
from distill.schema import ModelConfig, TrackingConfig
from distill.tracking import registry
from distill.tracking.registry import content_sha256, register_champion
from distill.tracking.runs import Run, start_job

TRACKING = TrackingConfig(registered_model="draft")
TAGS = {"alpha": "0.412", "k": "2"}


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "draft"
    (made / "sub").mkdir(parents=True)
    (made / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (made / "sub" / "weights.bin").write_bytes(b"\0\1\2")
    return made


def register(root, folder, tags=TAGS):
    with start_job({}, TRACKING, root, "job") as job, job.stage("register") as run:
        return register_champion(folder, TRACKING, tags, run), job.run.client


def test_the_registered_folder_comes_back_as_it_is(root, folder, tmp_path):
    champion, client = register(root, folder)
    assert (champion.model_uri, champion.version) == ("models:/draft@champion", 1)
    for uri in (champion.model_uri, champion.version_uri):
        back = resolve_model(ModelConfig("mlflow", uri), tmp_path / "cache")
        assert (back / "config.json").is_file()
        assert content_sha256(back) == content_sha256(folder)
    version = client.get_model_version_by_alias("draft", "champion")
    assert version.tags.items() >= TAGS.items()


def test_the_same_champion_again_is_the_same_version(root, folder):
    first, client = register(root, folder)
    again, _ = register(root, folder)
    assert (first.is_new, again.is_new) == (True, False)
    assert again.version == first.version
    assert len(client.search_model_versions("name = 'draft'")) == 1


def test_other_weights_or_other_results_are_a_new_version_and_the_alias_can_go_back(root, folder):
    register(root, folder)
    (folder / "sub" / "weights.bin").write_bytes(b"\0\1\3")
    assert register(root, folder)[0].version == 2
    assert register(root, folder, {**TAGS, "alpha": "0.5"})[0].version == 3
    (folder / "sub" / "weights.bin").write_bytes(b"\0\1\2")
    back, client = register(root, folder)
    assert (back.version, back.is_new) == (1, False)
    assert int(client.get_model_version_by_alias("draft", "champion").version) == 1


def test_the_alias_stays_when_the_upload_is_not_whole(root, folder, monkeypatch):
    _, client = register(root, folder)
    (folder / "sub" / "weights.bin").write_bytes(b"\0\1\3")

    def half(run, source, path):
        run.client.log_artifact(run.id, str(source / "config.json"), path)

    monkeypatch.setattr(registry.Run, "log_folder", half)
    with pytest.raises(UserError, match=r"sub/weights\.bin"):
        register(root, folder)
    assert int(client.get_model_version_by_alias("draft", "champion").version) == 1


def test_a_version_whose_files_are_gone_is_registered_again(root, folder):
    register(root, folder)
    next((root / "mlruns").rglob("weights.bin")).unlink()
    champion, _ = register(root, folder)
    assert (champion.version, champion.is_new) == (2, True)


def test_what_is_no_model_is_refused(root, tmp_path):
    with pytest.raises(UserError, match=r"config\.json"):
        register(root, tmp_path)


def test_the_hash_sees_names_and_bytes(folder):
    before = content_sha256(folder)
    (folder / "config.json").rename(folder / "other.json")
    assert content_sha256(folder) != before


def test_other_ranks_register_nothing(tmp_path, folder):
    run = Run(None, "", "http://127.0.0.1:9")
    champion = register_champion(folder, TRACKING, TAGS, run)
    assert (champion.version_uri, champion.version) == ("models:/draft@champion", None)
