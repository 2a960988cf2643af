"""The ragged cache by itself."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

from distill.speculative.cache import BLOCK, RaggedCache

CPU = torch.device("cpu")


def write(cache: RaggedCache, rows: list[list[float]]):
    """Write one head of width one; returns the visible keys [B, span]."""
    states = torch.tensor(rows)[:, None, :, None]
    cache.begin(states.shape[2])
    keys, _ = cache.update(states, states, 0)
    return keys[:, 0, :, 0]


@pytest.mark.parametrize("fixed", [False, True])
def test_rows_are_written_at_their_own_positions(fixed):
    cache = RaggedCache(2, CPU, fixed=fixed)
    write(cache, [[1, 2, 3], [4, 9, 9]])
    cache.advance([3, 1])
    keys = write(cache, [[5], [6]])
    assert keys[0, :4].tolist() == [1, 2, 3, 5]
    assert keys[1, :2].tolist() == [4, 6]
    assert cache.visible()[:, 0, 0].sum(-1).tolist() == [4, 2]


def test_rollback_only_shortens():
    cache = RaggedCache(1, CPU)
    write(cache, [[1, 2, 3]])
    cache.advance([3])
    cache.rollback([1])
    assert write(cache, [[7]])[0].tolist() == [1, 7]
    with pytest.raises(AssertionError):
        cache.rollback([2])


def test_growing_keeps_what_is_held():
    cache = RaggedCache(1, CPU)
    write(cache, [[float(n) for n in range(BLOCK)]])
    cache.advance([BLOCK])
    keys = write(cache, [[-1]])
    assert cache.capacity == 2 * BLOCK
    assert keys[0].tolist() == [*range(BLOCK), -1]


def test_kept_rows_move_up():
    cache = RaggedCache(3, CPU)
    write(cache, [[1], [2], [3]])
    cache.advance([1, 1, 1])
    cache.keep([0, 2])
    assert write(cache, [[8], [9]]).tolist() == [[1, 8], [3, 9]]


def test_window():
    cache = RaggedCache(1, CPU)
    cache.begin(4)
    assert cache.visible(2)[0, 0].int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]


def test_fixed_shapes_change_by_the_block():
    cache = RaggedCache(1, CPU, fixed=True)
    spans = set()
    for _ in range(BLOCK):
        cache.begin(1)
        spans.add(cache.span)
        cache.advance([1])
    assert spans == {BLOCK}


class OneDevice(TorchFunctionMode):
    """Refuses operations over two devices, as CUDA does; the CPU's own indices would be let in."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        moves = function is torch.Tensor.to
        found = {
            one.device
            for one in tree_flatten([arguments, options or {}])[0]
            if isinstance(one, torch.Tensor)
        }
        if len(found) > 1 and not moves:
            raise RuntimeError(f"{function.__name__} over {found}")
        return function(*arguments, **options or {})


@pytest.mark.parametrize("fixed", [False, True])
def test_layers_may_lie_on_several_devices(fixed):
    """`device_map=auto`, with a device that holds no numbers as the second one."""
    second = torch.device("meta")
    cache = RaggedCache(3, CPU, fixed=fixed)
    with OneDevice():
        for lengths in ([2, 1, 2], [1, 1, 1]):
            cache.begin(2)
            for layer, device in enumerate((CPU, second)):
                states = torch.ones((3, 2, 2, 4), device=device)
                keys, values = cache.update(states, states, layer)
                assert keys.device == values.device == device
            cache.advance(lengths)
        assert cache.visible().device == CPU
        cache.keep([0, 2])
