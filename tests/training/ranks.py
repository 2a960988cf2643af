"""Start a worker file as the ranks of one job on this machine, and wait for all of them."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def start(worker: Path, arguments: list[str], errors: Path, world: int) -> list[subprocess.Popen]:
    """Processes of a job of `world` ranks; rank n writes its errors to `errors`/errors<n>.txt."""
    errors.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(world):
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        if world > 1:
            env |= {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "GROUP_RANK": "0",
                "TORCHELASTIC_RUN_ID": "test",  # how Lightning knows that the ranks exist already
            }
        with (errors / f"errors{rank}.txt").open("w") as file:
            command = [sys.executable, str(worker), *arguments]
            processes.append(subprocess.Popen(command, env=env, stderr=file))
    return processes


def wait(processes: list[subprocess.Popen], errors: list[Path]) -> None:
    """Fail with what the ranks wrote to the folders `errors` unless all end well."""
    try:
        codes = [process.wait(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    written = [path.read_text() for folder in errors for path in sorted(folder.glob("errors*"))]
    assert not any(codes), "\n".join(written)
