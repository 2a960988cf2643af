"""MLflow for real, on SQLite: an alias is pinned to the version it names now."""

import pytest

from distill.errors import UserError
from distill.models.source import check_model_folder, resolve_model


# MLflow 3.17 queries SQLAlchemy 2.1 this way.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
@pytest.mark.slow
def test_alias_from_a_registry(tiny, target, tmp_path):
    import mlflow

    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/registry.db")
    try:
        client = mlflow.MlflowClient()
        client.create_registered_model("draft")
        client.create_model_version("draft", source=str(target))
        client.set_registered_model_alias("draft", "champion", "1")
        folder = resolve_model(tiny.source("mlflow", "models:/draft@champion"), tmp_path / "cache")
        check_model_folder(folder, "draft")
        for name in ("config.json", "model.safetensors"):
            assert (folder / name).read_bytes() == (target / name).read_bytes()
        with pytest.raises(UserError, match=r"models:/draft@none.*check the name"):
            resolve_model(tiny.source("mlflow", "models:/draft@none"), tmp_path / "cache")
    finally:
        mlflow.set_tracking_uri(before)
