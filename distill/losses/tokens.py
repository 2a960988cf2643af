"""Which positions count, and how their summed loss becomes a mean: masking and averaging.

Shapes: B rows, S tokens a row, T supervised tokens.
Everything is a ratio of sums. A mean of micro-batch or rank means would weigh a token by the number
of others it came with.
"""

from torch import Tensor


def predicting_positions(supervised: Tensor) -> Tensor:
    """Flat indices [T] into B·S of the positions whose *next* token is supervised.

    ``supervised`` [B, S] marks tokens being predicted; the state that predicts token s is at s − 1,
    so the first column never counts.
    """
    shifted = supervised.roll(-1, dims=1)
    shifted[:, -1] = False
    return shifted.flatten().nonzero().squeeze(1)


def gradient_scale(global_tokens: int, world_size: int = 1) -> float:
    """What turns gradients of loss SUMS into the gradient of the mean over all ranks' tokens.

    Data-parallel training averages gradients over ranks, hence ``world_size``. ``global_tokens`` is
    above 0: a step without a supervised token is not taken.
    """
    return world_size / global_tokens
