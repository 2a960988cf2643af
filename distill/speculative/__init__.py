"""Exact speculative decoding: `decode`, its settings and its drafters."""

from distill.speculative.decode import Output, decode
from distill.speculative.drafters import Drafter, ModelDrafter, Proposal
from distill.speculative.layers import LayerDrafter
from distill.speculative.lengths import Adaptive, Confident
from distill.speculative.sampling import Sampling

__all__ = [
    "Adaptive",
    "Confident",
    "Drafter",
    "LayerDrafter",
    "ModelDrafter",
    "Output",
    "Proposal",
    "Sampling",
    "decode",
]
