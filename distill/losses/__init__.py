"""Losses: per-token divergences and their fused and sparse forms."""

from distill.losses.acceptance import acceptance, alpha, lk, total_variation
from distill.losses.divergence import cross_entropy, forward_kl, jsd, reverse_kl
from distill.losses.fused import fused_linear_loss
from distill.losses.fused_sparse import fused_sparse_loss
from distill.losses.head import Head
from distill.losses.mixture import Mixture, as_divergence

__all__ = [
    "Head",
    "Mixture",
    "acceptance",
    "alpha",
    "as_divergence",
    "cross_entropy",
    "forward_kl",
    "fused_linear_loss",
    "fused_sparse_loss",
    "jsd",
    "lk",
    "reverse_kl",
    "total_variation",
]
