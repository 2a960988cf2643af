"""Graphs without a device to capture them: what is timed, and which models have any."""

import time
from types import SimpleNamespace

import pytest
import torch

from distill.speculative import graphs, stopwatch
from distill.speculative.cache import RaggedCache
from distill.speculative.forward import capturable
from distill.speculative.graphs import Captured, Graphs
from distill.speculative.passed import Passed
from tests.tiny import tiny_llama

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_a_capture_takes_no_time_of_a_decoding(clock, monkeypatch):
    """A replay is timed; the eager pass before a capture and the capture itself are not."""
    captured = []

    def capture(compute, inputs, cache):
        clock[0] += 100.0
        captured.append(inputs[0].shape)

        def replay():
            clock[0] += 1.0

        static = tuple(tensor.clone() for tensor in inputs)
        graph = SimpleNamespace(replay=replay)
        return Captured(graph, static, cache.positions.clone(), Passed(static[0], None))

    def compute(tokens):
        clock[0] += 10.0
        return Passed(tokens, None)

    monkeypatch.setattr(graphs, "_capture", capture)
    cache, found = RaggedCache(1, CPU, fixed=True), Graphs()
    start = stopwatch.seconds(CPU)
    for width in (1, 2, 1, 2, 1):
        cache.begin(width)
        found.run(compute, (torch.zeros((1, width)),), cache, "kind")
    assert captured == [(1, 1), (1, 2)]
    assert stopwatch.seconds(CPU) - start == 5.0
    assert clock[0] == 5.0 + 2 * 110.0


def test_a_model_on_several_devices_is_not_captured():
    model = tiny_llama()
    assert capturable(model)
    model.model.layers[1].to("meta")
    assert not capturable(model)
