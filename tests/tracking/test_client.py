"""SECRETS: a store's user and password are used, and never shown; one process makes a database."""

import base64
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from distill.errors import UserError
from distill.schema import TrackingConfig
from distill.tracking.client import connect, tracking_uri, without_credentials


class Server(BaseHTTPRequestHandler):
    seen: list[str | None] = []  # noqa: RUF012  # of this test's one server

    def do_GET(self):
        self.seen.append(self.headers.get("Authorization"))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format, *args): ...


@pytest.fixture
def server(monkeypatch):
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, "another's")
    Server.seen.clear()
    found = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found.server_port
    found.shutdown()
    found.server_close()


def test_a_server_with_user_and_password_is_connected_to(server, tmp_path):
    tracking = TrackingConfig(uri=f"http://user:p%40ss@127.0.0.1:{server}")
    client = connect(tracking, tmp_path)
    client.get_experiment_by_name("any")
    wanted = "Basic " + base64.b64encode(b"user:p@ss").decode()
    assert Server.seen[-1] == wanted
    assert client.tracking_uri == tracking_uri(tracking, tmp_path) == f"http://127.0.0.1:{server}"
    assert "p%40ss" not in os.environ["MLFLOW_TRACKING_URI"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:SECRET@host:5000/x", "http://host:5000/x"),
        ("postgresql://me:SEC@RET@db/mlflow", "postgresql://db/mlflow"),
        ("https://SECRET@host", "https://host"),
        ("tracking.uri=http://u:SECRET@h name=x", "tracking.uri=http://h name=x"),
        ("mysql://db/x?user=me&password=SECRET&ssl=1", "mysql://db/x?user=me&password=***&ssl=1"),
        ("http://h/x?access_token=SECRET", "http://h/x?access_token=***"),
        ("models:/draft@champion", "models:/draft@champion"),
        ("data.source.path=http://h/a@b.jsonl", "data.source.path=http://h/a@b.jsonl"),
        ("{uri: 'http://u:SECRET@h', alias: a@b}", "{uri: 'http://h', alias: a@b}"),
    ],
)  # fmt: skip
def test_what_is_shown_has_no_credentials(text, shown):
    assert without_credentials(text) == shown
    assert without_credentials(shown) == shown


@pytest.mark.parametrize("uri", ["http://u:SECRET@127.0.0.1:9", "mysql://u:SECRET@127.0.0.1:9/x"])
def test_a_store_that_cannot_be_used_is_named_without_its_password(uri, tmp_path):
    with pytest.raises(UserError) as refused:
        connect(TrackingConfig(uri=uri), tmp_path)
    assert "SECRET" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.slow
def test_jobs_that_start_at_once_make_one_database(tmp_path):
    script = (
        "from pathlib import Path\n"
        "from distill.tracking.client import connect, experiment_id\n"
        "from distill.schema import TrackingConfig\n"
        f"root = Path({str(tmp_path)!r})\n"
        "experiment_id(connect(TrackingConfig(), root), TrackingConfig(), root)\n"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [job.wait() for job in jobs] == [0, 0]
