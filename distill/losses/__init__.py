"""Losses: per-token divergences, and their fused form against any signal of the teacher."""

from distill.losses.dense import HiddenSignal
from distill.losses.divergence import (
    acceptance,
    alpha,
    cross_entropy,
    forward_kl,
    jsd,
    lk,
    reverse_kl,
    total_variation,
)
from distill.losses.fused import Signal, fused_loss
from distill.losses.head import Head
from distill.losses.mixture import FORWARD_KL, Mixture
from distill.losses.reduced import ReducedSignal, summarise
from distill.losses.sparse import Sampled, TopK

__all__ = [
    "FORWARD_KL",
    "Head",
    "HiddenSignal",
    "Mixture",
    "ReducedSignal",
    "Sampled",
    "Signal",
    "TopK",
    "acceptance",
    "alpha",
    "cross_entropy",
    "forward_kl",
    "fused_loss",
    "jsd",
    "lk",
    "reverse_kl",
    "summarise",
    "total_variation",
]
