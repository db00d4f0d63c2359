# SPDX-License-Identifier: Apache-2.0
"""Losses of learning without labels. Each takes both halves of a batch as one tensor: row i and row m + i are of the same image."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from labeldp import _validate
from labeldp.errors import InvalidInput


def nt_xent(projections: Tensor, temperature: float = 0.5) -> Tensor:
    """SimCLR's loss: of all other views in the batch, find the other one of the same image.

    Parameters
    ----------
    projections : (2m, d) float tensor
        m first views, then the second views of the same images. Their lengths do not count.
    temperature : float

    Returns
    -------
    Scalar tensor: mean over views of -ln softmax(cosines / temperature) at the partner. At least float32.

    Notes
    -----
    Source: Chen et al., "A simple framework for contrastive learning" (2020), equation 1. Cost O(m^2 d).
    """
    m = _half(projections)
    sharpness = 1 / _validate.positive(temperature=temperature)
    z = functional.normalize(_wide(projections), dim=1)
    itself = torch.eye(2 * m, dtype=torch.bool, device=z.device)
    cosines = (z @ z.T).masked_fill(itself, -math.inf) * sharpness
    return functional.cross_entropy(cosines, torch.arange(2 * m, device=z.device).roll(m))


def byol_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """BYOL's loss: foretell what the slower net makes of the other view.

    Parameters
    ----------
    predictions, targets : (2m, d) float tensors
        m first views, then the second views. Targets get no gradient.

    Returns
    -------
    Scalar tensor, 0 to 4: mean over views of 2 - 2 cos(prediction, target of the other view).

    Notes
    -----
    Source: Grill et al., "Bootstrap your own latent" (2020), equation 2, the mean of both directions.
    """
    m = _half(predictions)
    if targets.shape != predictions.shape:
        raise InvalidInput(f"Expected targets of shape {tuple(predictions.shape)}, got {tuple(targets.shape)}.")
    cosines = functional.cosine_similarity(_wide(predictions), _wide(targets.detach()).roll(m, 0), dim=1)
    return 2 - 2 * cosines.mean()


def scan_loss(logits: Tensor, entropy_weight: float = 5.0) -> Tensor:
    """SCAN's loss: neighbours in one cluster, and rows spread over all clusters.

    Parameters
    ----------
    logits : (2m, C) float tensor
        m rows, then a neighbour of each.
    entropy_weight : float
        Against one cluster that takes all.

    Returns
    -------
    Scalar tensor: -mean ln sum_c p_c(row) p_c(neighbour) - entropy_weight x entropy of the mean p of the rows.

    Notes
    -----
    Source: Van Gansbeke et al., "SCAN: learning to classify images without labels" (2020), equation 2.
    """
    _half(logits)
    log_p = functional.log_softmax(_wide(logits), dim=1)
    rows, neighbours = log_p.chunk(2)
    apart = -torch.logsumexp(rows + neighbours, dim=1).mean()
    log_mean = torch.logsumexp(rows, dim=0) - math.log(len(rows))
    return apart + entropy_weight * (log_mean.exp() * log_mean).sum()


def self_label_loss(logits: Tensor, confidence: float = 0.99) -> Tensor:
    """SCAN's last step: rows that are surely of a cluster say what their changed views are of.

    Parameters
    ----------
    logits : (2m, C) float tensor
        m rows as they are, which get no gradient, then a view of each.
    confidence : float
        Least probability of a row that counts.

    Returns
    -------
    Scalar tensor: cross-entropy of the views of those rows, each cluster with the same weight; 0 where there is none.

    Notes
    -----
    Source: Van Gansbeke et al. 2020, section 2.3, with the weights of its code.
    """
    m = _half(logits)
    least, wide = _validate.fraction(confidence=confidence), _wide(logits)
    sure, cluster = functional.softmax(wide[:m].detach(), dim=1).max(dim=1)
    counted = (sure > least).to(wide.dtype)
    sizes = torch.zeros(wide.shape[1], dtype=wide.dtype, device=wide.device).index_add_(0, cluster, counted)
    weights = counted / sizes[cluster].clamp_min(1)
    each = functional.cross_entropy(wide[m:], cluster, reduction="none")
    return (each * weights).sum() / weights.sum().clamp_min(1)


def _half(rows: Tensor) -> int:
    if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) % 2 or not len(rows) or not rows.is_floating_point():
        found = f"shape {tuple(rows.shape)} of {rows.dtype}" if isinstance(rows, Tensor) else type(rows).__name__
        raise InvalidInput(f"Expected floats (2m, d), both halves of a batch, got {found}. Concatenate the two views' outputs.")
    return len(rows) // 2


def _wide(values: Tensor) -> Tensor:
    """In float32 at least."""
    return values if values.dtype == torch.float64 else values.float()
