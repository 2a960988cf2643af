"""Losses: per-token divergences, what they need of the teacher, and their fused and sparse forms."""

from distill.losses.acceptance import acceptance, alpha, lk, total_variation
from distill.losses.divergence import cross_entropy, forward_kl, jsd, reverse_kl
from distill.losses.fused import fused_linear_loss
from distill.losses.head import Head

__all__ = [
    "Head",
    "acceptance",
    "alpha",
    "cross_entropy",
    "forward_kl",
    "fused_linear_loss",
    "jsd",
    "lk",
    "reverse_kl",
    "total_variation",
]
