# SPDX-License-Identifier: Apache-2.0
"""What rows share: a strongly changed input is taught the class that a net, the row's own noisy label and its neighbours agree on.

At small epsilon a noisy label says little of its own row, but much together with those of similar rows. Three things use that:

    Consistency        settings of a training in which the averaged net's prediction for an input, times the likelihood of the row's noisy
                       label, is the target for a strongly changed view of the input
    Targets            these posteriors, row by row, with the mean of the predictions so far
    neighbour_votes    the class frequencies among the nearest rows that make their noisy labels likeliest: predictions to begin with

All of it is computed from released labels and public inputs, so it costs no budget.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labeldp import _validate
from labeldp.deep._losses import Form
from labeldp.deep.augment import Augmentation, rand_augment
from labeldp.errors import InvalidInput
from labeldp.protocol.metrics import likeliest_frequencies

_CELLS = 1 << 25  # numbers worked on at a time: 128 MiB of float32
_LEAST = 1e-9  # of a probability whose logarithm is taken
_PRIOR_SHARE = 0.02  # of the class frequencies in first predictions: a vote of 0 would rule a class out
_FOLLOWED, _FOLLOWED_ROWS = 0.02, 512  # each 512 rows move the classes' mean predictions by 0.02 towards theirs
_EM_STEPS = 40
_COUNTED_CELLS = 1 << 22  # numbers, at most, from which class frequencies are estimated


@dataclass(frozen=True)
class Consistency:
    """Targets from what rows share: for nets that learn from images, or from inputs for which you know a change that keeps the class.

    In each step the net sees a batch of which a share is strongly changed. Beside the recipe's loss it learns, by cross-entropy, each row's
    target: the prediction of the averaged net for the weakly changed input (`Recipe.augment`), averaged over epochs, scaled to the class
    frequencies of the noisy labels, times the likelihood of the row's own noisy label, and sharpened.

    Parameters
    ----------
    strong : function (inputs, generator) -> inputs, default=augment.rand_augment
        The strong change, applied after `Recipe.augment`. The default is for images of values in 0..1. For other inputs give one that keeps
        the class.
    weight : float > 0, default=1.0
        Weight of the cross-entropy against the targets; the recipe's loss has weight 1.
    temperature : float in [0, 1], default=0.5
        Targets are posterior ** (1 / temperature), normalised. 0: the likeliest class alone.
    threshold : float in [0, 1), default=0.0
        Rows whose largest posterior is not above it have no target, and learn from the recipe's loss alone.
    share : float in (0, 1], default=0.75
        Chance that an input of the batch is strongly changed. Below 1, batch normalisation knows unchanged inputs too.
    memory : float in [0, 1), default=0.7
        Weight of the past in each row's mean prediction, at each epoch; 0: the present prediction alone.
    align : bool, default=True
        Whether predictions are scaled to the class frequencies that the noisy labels tell. Without it, classes can take over all rows.
    own : bool, default=True
        Whether the row's own noisy label counts in its target.
    warm_up : int >= 0, default=0
        Epochs on the recipe's loss alone; over as many epochs more the weight rises to its full value. Give some where the net's first
        weights are random: the targets of a net that knows nothing teach nothing.
    neighbours : int >= 0, default=0
        Number of nearest rows whose `neighbour_votes` are the first predictions, by the cosine of the features that the last linear layer
        reads before training. For nets whose first weights were learned without labels (`labeldp.research.ssl.simclr`). 0 for none.

    Raises
    ------
    InvalidInput
        For a setting that no training could use.

    See Also
    --------
    Recipe : has these settings as `consistency`.
    neighbour_votes : first predictions by hand.

    Notes
    -----
    Guarantee: post-processing of released labels; no budget. Cost: one prediction a row and epoch more, and n x K float32 on the device.
    Sources: Sohn et al., "FixMatch" (2020); Berthelot et al., "AdaMatch" (2022), for the scaling; Laine and Aila, "Temporal ensembling"
    (2017), for the mean over epochs. The likelihood in the target is this library's.

    Examples
    --------
    >>> from labeldp.deep import Consistency, Recipe, augment
    >>> recipe = Recipe(epochs=60, augment=augment.flip, consistency=Consistency(warm_up=10))
    """

    strong: Augmentation = rand_augment
    weight: float = 1.0
    temperature: float = 0.5
    threshold: float = 0.0
    share: float = 0.75
    memory: float = 0.7
    align: bool = True
    own: bool = True
    warm_up: int = 0
    neighbours: int = 0

    def __post_init__(self) -> None:
        _validate.function(strong=self.strong, takes="(inputs, generator)")
        _validate.positive(weight=self.weight)
        _validate.fraction(temperature=self.temperature, zero=True, one=True)
        _validate.fraction(threshold=self.threshold, zero=True)
        _validate.fraction(share=self.share, one=True)
        _validate.fraction(memory=self.memory, zero=True)
        _validate.integer(warm_up=self.warm_up, low=0)
        _validate.integer(neighbours=self.neighbours, low=0)
        _validate.boolean(align=self.align)
        _validate.boolean(own=self.own)

    def weight_at(self, epochs: float) -> float:
        """The weight of the targets after so many epochs, which may be a fraction."""
        if epochs < self.warm_up:
            return 0.0
        return self.weight * (1.0 if not self.warm_up else min(1.0, (epochs - self.warm_up) / self.warm_up))

    def views(self, weak: Tensor, generator: torch.Generator) -> Tensor:
        """The batch that the net learns from: some inputs strongly changed, the others as they are."""
        chosen = (torch.rand(len(weak), generator=generator, device=generator.device) < self.share).to(weak.device)
        changed = self.strong(weak, generator)
        # Checked here, since torch would repeat a single row for all.
        if not isinstance(changed, Tensor) or changed.shape != weak.shape:
            found = f"shape {tuple(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise InvalidInput(f"Expected strong to return inputs of shape {tuple(weak.shape)}, got {found}. Change each row by itself.")
        return torch.where(chosen.view(-1, *[1] * (weak.ndim - 1)), changed, weak)


class Targets:
    """Each row's mean prediction so far, and the target that follows from it.

    Parameters
    ----------
    settings : Consistency
    evidence : Form of n rows
        On the device that the training runs on.
    n_classes : int
    first : (n, K) float tensor, optional
        Predictions to begin with, such as `neighbour_votes`.
    """

    def __init__(self, settings: Consistency, evidence: Form, n_classes: int, first: Tensor | None = None) -> None:
        self._settings, self._evidence = settings, evidence
        device = evidence.tensors[0].device
        self.frequencies = _frequencies(evidence, n_classes).to(device)
        every = self.frequencies.repeat(len(evidence), 1)
        self._mean = every if first is None else torch.lerp(first.float(), every, _PRIOR_SHARE)
        self._predicted = torch.full((len(evidence),), first is not None, device=device)  # rows whose mean is of predictions
        self._present = self._mean.mean(0)  # class frequencies of the mean predictions, followed batch by batch

    @torch.no_grad()
    def learn(self, rows: Tensor, proba: Tensor) -> None:
        """Take in the averaged net's predictions (m, K) for some rows; a row's first one replaces the class frequencies."""
        past = torch.where(self._predicted[rows], self._settings.memory, 0.0)[:, None]
        self._mean[rows] = mean = torch.lerp(proba, self._mean[rows], past)
        self._predicted[rows] = True
        self._present.lerp_(mean.mean(0), min(1.0, _FOLLOWED * len(rows) / _FOLLOWED_ROWS))

    @torch.no_grad()
    def of(self, rows: Tensor) -> Tensor:
        """Targets of some rows: (m, K), each summing to 1, or to 0 where the row has none."""
        settings = self._settings
        guess = self._mean[rows]
        if settings.align:
            guess = guess * (self.frequencies / self._present.clamp_min(_LEAST))
        log_target = guess.clamp_min(_LEAST).log()
        if settings.own:
            log_target = self._evidence[rows].plus(log_target)
        posterior = torch.softmax(log_target, dim=1)
        sure = posterior.amax(dim=1, keepdim=True) > settings.threshold
        if settings.temperature == 0:
            sharp = functional.one_hot(posterior.argmax(dim=1), posterior.shape[1]).to(posterior)
        else:
            sharp = torch.softmax(log_target / settings.temperature, dim=1)
        return sharp * sure


def _frequencies(evidence: Form, n_classes: int) -> Tensor:
    """The class frequencies (K,) that make the noisy labels likeliest; of many rows, every so many-th is looked at."""
    step = max(1, len(evidence) * n_classes // _COUNTED_CELLS)
    likelihood = _likelihood(evidence[slice(None, None, step)], n_classes)
    return torch.from_numpy(likeliest_frequencies(np.asarray(likelihood.double().cpu()))).float()


def _likelihood(evidence: Form, n_classes: int) -> Tensor:
    """Likelihoods (m, K) of each class, as multiples of the row's largest, so that none of them overflows."""
    table = evidence.expand(n_classes)
    return (table - table.amax(dim=1, keepdim=True)).exp()


def nearest_rows(features: Tensor, count: int) -> Tensor:
    """Find the nearest other rows by cosine, nearest first: (n, count) int64 on the CPU.

    Parameters
    ----------
    features : (n, d) float tensor
    count : int
        Less than n.
    """
    return torch.cat([near.cpu() for near in _nearest(features, count)])


@torch.no_grad()
def neighbour_votes(features: Any, evidence: Any, n_classes: int, count: int = 200) -> Tensor:
    """Estimate each row's class probabilities from the noisy labels of its nearest other rows.

    Parameters
    ----------
    features : (n, d) float tensor
        Made without labels, or from noisy ones. Not NaN.
    evidence : Form of n rows
        Of `evidence_of`; on any device.
    n_classes : int
        K.
    count : int, default=200
        Number of neighbours, by the cosine of their features, cut to n - 1. As a rule of thumb their noisy labels together should tell some
        20 nats.

    Returns
    -------
    (n, K) float32 tensor on the features' device: for each row the class frequencies that make the noisy labels of its neighbours
    likeliest. The row's own noisy label has no part in them.

    Raises
    ------
    InvalidInput
        Features that are not finite, or not one for each row of evidence, or of fewer than two rows; evidence that is no form, or of other
        classes.

    See Also
    --------
    Consistency : starts from these where its `neighbours` is above 0.

    Notes
    -----
    Guarantee: post-processing of released labels. Cost: O(n^2 d) for the neighbours, then 40 steps of EM, O(n count K) each, on the
    features' device. Source: the vote of neighbours in Feng et al., "SSR" (2022), with the law's likelihood instead of labels.
    """
    if not isinstance(features, Tensor) or not isinstance(evidence, Form):
        kinds = f"{type(features).__name__} and {type(evidence).__name__}"
        raise InvalidInput(f"Expected features as a tensor and evidence as a form, got {kinds}. Pass evidence_of(noisy).")
    if features.ndim != 2 or len(features) != len(evidence) or len(features) < 2:
        raise InvalidInput(
            f"Expected features (n, d) of the {len(evidence)} rows of evidence, two rows or more, got shape {tuple(features.shape)}."
        )
    if not evidence.fits(_validate.integer(n_classes=n_classes, low=2)):
        raise InvalidInput(f"Expected the number of classes of the evidence, got n_classes={n_classes}.")
    if not bool((finite := features.isfinite().all(dim=1)).all()):
        row = int((~finite).nonzero()[0, 0])
        raise InvalidInput(f"Expected finite features, got NaN or infinity (first: row {row}). Look at the input of that row.")
    evidence = evidence.to(features.device)
    count = min(_validate.integer(count=count, low=1), len(features) - 1)
    start = _frequencies(evidence, n_classes).to(features.device)
    found = []
    for near in _nearest(features, count):
        for some in near.split(max(1, _CELLS // (count * n_classes))):
            likelihood = _likelihood(evidence[some.flatten()], n_classes).view(len(some), count, n_classes)
            mix = start.repeat(len(some), 1)
            for _ in range(_EM_STEPS):
                posterior = mix[:, None] * likelihood
                mix = (posterior / posterior.sum(dim=2, keepdim=True)).mean(dim=1)
            found.append(mix)
    return torch.cat(found)


def _nearest(features: Tensor, count: int) -> Iterator[Tensor]:
    """Yield the nearest other rows (m, count) of each row, block by block of rows."""
    largest = features.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(features.dtype).tiny)  # squares of huge numbers overflow
    unit = functional.normalize((features / largest).float(), dim=1)
    for rows in torch.arange(len(unit), device=unit.device).split(max(1, (_CELLS << 1) // len(unit))):
        cosines: Any = unit[rows] @ unit.T
        cosines[torch.arange(len(rows), device=unit.device), rows] = -2.0  # not itself
        yield cosines.topk(count, dim=1).indices
