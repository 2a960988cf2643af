"""One SQLite database per session (making it takes seconds); each test works on a copy."""

import shutil
from pathlib import Path

import pytest

from distill.schema import TrackingConfig
from distill.tracking.client import connect


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mlflow")
    connect(TrackingConfig(), root)
    return root / "mlflow.db"


@pytest.fixture
def root(empty_database: Path, tmp_path: Path) -> Path:
    """An output root; its name holds what file and database URIs often trip over."""
    folder = tmp_path / "out put #1"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    return folder
