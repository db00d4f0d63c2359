# SPDX-License-Identifier: Apache-2.0
"""What rows share: a strongly changed input is taught the class that a net, the row's own noisy
label and its neighbours agree on.

At small epsilon a noisy label says little of its own row, but much together with those of similar
rows. Three things use that:

    Consistency        settings of a training in which the averaged net's prediction for an input,
                       times the likelihood of the row's noisy label, is the target for a strongly
                       changed view of the input
    Targets            these posteriors, row by row, with the mean of the predictions so far
    neighbour_votes    the class frequencies among the nearest rows that make their noisy labels
                       likeliest: predictions to begin with

All of it is computed from released labels and public inputs, so it costs no budget.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from labeldp import _validate
from labeldp.deep._losses import Candidates, Form, looks, require_log_likelihood
from labeldp.deep.augment import Augmentation, rand_augment
from labeldp.errors import InvalidInput, LostClassWarning
from labeldp.protocol.metrics import frequencies_beside, likeliest_frequencies

_CELLS = 1 << 25  # numbers worked on at a time: 128 MiB of float32
_LEAST = 1e-9  # of a probability whose logarithm is taken
# of the class frequencies in first predictions: a vote of 0 would rule a class out
_PRIOR_SHARE = 0.02
# each 512 rows move the classes' mean predictions by 0.02 towards theirs
_FOLLOWED, _FOLLOWED_ROWS = 0.02, 512
_EM_STEPS = 40
_HEAVIEST = 10.0  # weight of a class whose targets are rare
# of the largest likelihood, from which a class counts as one that the output speaks for
_MEMBER = 1 - 1e-4
_COUNTED_CELLS = 1 << 22  # numbers, at most, from which class frequencies are estimated


@dataclass(frozen=True)
class Consistency:
    """Targets from what rows share: for nets that learn from images, or from inputs for which you
    know a change that keeps the class.

    In each step the net sees a batch of which three in four inputs, chosen at random, are strongly
    changed. Beside the recipe's loss it learns, by cross-entropy, each row's target: the prediction
    of the averaged net for the weakly changed input (`Recipe.augment`), averaged over epochs,
    scaled to the class frequencies of the noisy labels, times the likelihood of the row's own noisy
    label, and sharpened.

    Parameters
    ----------
    strong : function (inputs, generator) -> inputs, or None, default=augment.rand_augment
        The strong change, applied after `Recipe.augment`. The default is for images of values in
        0..1. For other inputs give one that keeps the class; None changes nothing, so that
        predictions, neighbours and a prior teach the inputs as they are.
    weight : float > 0, default=1.0
        Weight of the cross-entropy against the targets; the recipe's loss has weight 1.
    temperature : float in [0, 1], default=0.5
        Targets are posterior ** (1 / temperature), normalised. 0: the likeliest class alone.
    threshold : float in [0, 1), default=0.0
        Rows whose largest posterior is not above it have no target, and learn from the recipe's
        loss alone.
    memory : float in [0, 1), default=0.7
        Weight of the past in each row's mean prediction, at each epoch; 0: the present prediction
        alone.
    align : bool, default=True
        Whether predictions are scaled to the class frequencies that the noisy labels tell. Without
        it, classes can take over all rows.
    own : bool or "mixture", default=True
        Whether the row's own noisy label counts in its target: by the law's likelihood, or not.
        "mixture": as DivideMix takes labels of unknown noise, by the chance that the label is
        right, from a mixture of two normal distributions of the rows' losses.
    warm_up : int >= 0, default=0
        Epochs on the recipe's loss alone; over as many epochs more the weight rises to its full
        value. With 0, a net of random weights learns its first guesses, and can collapse onto few
        classes: give some, unless `neighbours` or a prior are the first predictions.
    neighbours : int >= 0, default=0
        Number of nearest rows whose `neighbour_votes` are the first predictions, by the cosine of
        the features that the last linear layer reads before training. For nets whose first weights
        were learned without labels (`labeldp.papers.tang2022.simclr`). 0 for none.
    revote : int >= 0, default=0
        Every so many epochs the neighbours vote again, by the averaged net's features, and their
        votes become a factor of the posterior. 0: they vote before training alone. Needs
        `neighbours`.
    relative : bool, default=False
        Whether `threshold` is a share of the mean largest posterior, and so rises with what the net
        knows.
    balance : bool, default=False
        Whether targets are weighted so that the classes have the shares in them that the noisy
        labels tell.

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
    Guarantee: post-processing of released labels; no budget. Cost: one prediction a row and epoch
    more, and n x K float32 on the device. Sources: Sohn et al., "FixMatch" (2020); Berthelot et
    al., "AdaMatch" (2022), for the scaling; Laine and Aila, "Temporal ensembling" (2017), for the
    mean over epochs. The likelihood in the target is this library's.

    Examples
    --------
    >>> from labeldp.deep import Consistency, Recipe, augment
    >>> recipe = Recipe(epochs=60, augment=augment.flip, consistency=Consistency(warm_up=10))
    """

    strong: Augmentation | None = rand_augment
    weight: float = 1.0
    temperature: float = 0.5
    threshold: float = 0.0
    memory: float = 0.7
    align: bool = True
    own: bool | Literal["mixture"] = True
    warm_up: int = 0
    neighbours: int = 0
    revote: int = 0
    relative: bool = False
    balance: bool = False

    def __post_init__(self) -> None:
        _validate.function(strong=self.strong, takes="(inputs, generator)", none=True)
        _validate.positive(weight=self.weight)
        _validate.fraction(temperature=self.temperature, zero=True, one=True)
        _validate.fraction(threshold=self.threshold, zero=True)
        _validate.fraction(memory=self.memory, zero=True)
        _validate.integer(warm_up=self.warm_up, low=0)
        _validate.integer(neighbours=self.neighbours, low=0)
        _validate.boolean(align=self.align)
        if self.own != "mixture":
            _validate.boolean(own=self.own)
        _validate.integer(revote=self.revote, low=0)
        _validate.boolean(relative=self.relative)
        _validate.boolean(balance=self.balance)
        if self.revote and not self.neighbours:
            raise InvalidInput(
                f"Expected neighbours >= 1 with revote={self.revote}, got 0: none could vote. Set"
                " neighbours, or leave it out."
            )
        plain_numbers(self)

    @classmethod
    def fixmatch(cls, **changes: Any) -> Self:
        """FixMatch, as LDP-SSL uses it: the class that the net is sure of (above 0.95) is taught by
        the strong view.

        At a small epsilon it collapses onto a few classes: nothing but the net's own belief
        chooses. Take `adamatch` or `posterior_selection` there. Give `warm_up`.

        Parameters
        ----------
        **changes
            Other settings than the paper's.
        """
        return cls._changed(
            changes, threshold=0.95, temperature=0.0, memory=0.0, align=False, own=False
        )

    @classmethod
    def adamatch(cls, **changes: Any) -> Self:
        """AdaMatch: predictions are aligned to the class frequencies, and a row is taught above 0.9
        of the mean largest posterior.

        The frequencies are those that the noisy labels tell; the row's own noisy label counts by
        its likelihood. Give `warm_up`.

        Parameters
        ----------
        **changes
            Other settings.
        """
        return cls._changed(changes, threshold=0.9, relative=True, temperature=1.0, memory=0.0)

    @classmethod
    def posterior_selection(cls, **changes: Any) -> Self:
        """SSR's structure with the law's likelihood: neighbours vote each epoch, rows with a sure
        posterior are relabelled by it.

        The posterior is votes x mean prediction x likelihood of the row's own noisy label; classes
        are balanced to the frequencies that the noisy labels tell. The other rows learn from their
        noisy labels alone. Add mixup with `Recipe(alpha=...)`.

        Parameters
        ----------
        **changes
            Other settings.
        """
        return cls._changed(
            changes, neighbours=100, revote=1, threshold=0.5, relative=True, balance=True
        )

    @classmethod
    def dividemix(cls, **changes: Any) -> Self:
        """DivideMix with AugDescent: a mixture of two distributions of the rows' losses says whose
        noisy label is right.

        Weak views give the targets, strong views are learned. One net and its average stand for the
        paper's two nets; give `warm_up`.

        Parameters
        ----------
        **changes
            Other settings.
        """
        return cls._changed(changes, own="mixture", memory=0.0)

    @classmethod
    def _changed(cls, changes: Mapping[str, Any], **settings: Any) -> Self:
        """Make a paper's settings with the user's changes."""
        _validate.changes_of(cls, changes)
        return cls(**{**settings, **changes})

    def weight_at(self, epochs: float) -> float:
        """The weight of the targets after so many epochs, which may be a fraction."""
        if epochs < self.warm_up:
            return 0.0
        return self.weight * (
            1.0 if not self.warm_up else min(1.0, (epochs - self.warm_up) / self.warm_up)
        )

    def votes_in(self, epoch: int) -> bool:
        """Whether neighbours vote anew before this epoch, counted from 1."""
        return self.revote > 0 and epoch > max(1, self.warm_up) and epoch % self.revote == 0

    def views(self, weak: Tensor, generator: torch.Generator) -> Tensor:
        """The batch that the net learns from: three in four inputs strongly changed, on average;
        the others stay as they are, so that batch normalisation knows them too."""
        if self.strong is None:
            return weak
        chosen = (torch.rand(len(weak), generator=generator, device=generator.device) < 0.75).to(
            weak.device
        )
        changed = self.strong(weak, generator)
        # Checked here, since torch would repeat a single row for all.
        if not isinstance(changed, Tensor) or changed.shape != weak.shape:
            found = (
                f"shape {tuple(changed.shape)}"
                if isinstance(changed, Tensor)
                else type(changed).__name__
            )
            raise InvalidInput(
                f"Expected strong to return inputs of shape {tuple(weak.shape)}, got {found}."
                " Change each row by itself."
            )
        return torch.where(chosen.view(-1, *[1] * (weak.ndim - 1)), changed, weak)


def plain_numbers(settings: object) -> None:
    """Replace NumPy's numbers among the fields of settings by Python's: files of a training hold
    these alone."""
    for name, value in list(vars(settings).items()):
        if isinstance(value, np.generic):
            object.__setattr__(settings, name, value.item())


class Targets:
    """Each row's mean prediction so far, and the target that follows from it.

    Parameters
    ----------
    settings : Consistency
    evidence : Form of n rows
        On the device that the training runs on.
    n_classes : int
    first : (n, K) tensor or array of weights >= 0, optional
        Predictions to begin with; a row of zeros has none.
    """

    def __init__(
        self, settings: Consistency, evidence: Form, n_classes: int, first: Any = None
    ) -> None:
        self._settings, self._evidence = settings, evidence
        device = evidence.tensors[0].device
        self.frequencies = frequencies_of(evidence, n_classes, first).to(device)
        self._mean = self.frequencies.repeat(len(evidence), 1)
        # rows whose mean is of predictions
        self._predicted = torch.zeros(len(evidence), dtype=torch.bool, device=device)
        # followed batch by batch: class frequencies of the mean predictions, class shares of the
        # targets, the mean largest posterior
        self._present, self._chosen = self.frequencies.clone(), self.frequencies.clone()
        self._sureness: Tensor | None = None
        self._votes: Tensor | None = None
        # chance that a row's noisy label is right
        self._right = torch.full((len(evidence),), 0.5, device=device)
        self._taught = torch.zeros(n_classes, device=device)  # targets of each class in this epoch
        if first is not None:
            self._begin(_first_weights(first, self._mean))

    def _begin(self, factor: Tensor) -> None:
        """Multiply the predictions before training by what else is known, as multiples of the class
        frequencies."""
        self._mean = self._mean * factor
        self._mean /= self._mean.sum(dim=1, keepdim=True)
        self._predicted[:] = True
        self._present = self._mean.mean(0)

    def state(self) -> dict[str, Any]:
        """What has been learned of the rows so far."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        device = self._mean.device
        vars(self).update({name: value.to(device) for name, value in state.items()})

    @torch.no_grad()
    def vote(self, features: Tensor, *, before: bool = False) -> None:
        """Let the neighbours vote by these features (n, d): before training for the first
        predictions, later for a factor of targets."""
        votes = neighbour_votes(
            features, self._evidence, self._mean.shape[1], self._settings.neighbours
        )
        factor = (
            torch.lerp(votes, self.frequencies.expand_as(votes), _PRIOR_SHARE) / self.frequencies
        )
        if before:
            self._begin(factor)
        else:
            self._votes = factor

    @torch.no_grad()
    def learn(self, rows: Tensor, proba: Tensor) -> None:
        """Take in the averaged net's predictions (m, K) for some rows; a row's first one replaces
        the class frequencies."""
        past = torch.where(self._predicted[rows], self._settings.memory, 0.0)[:, None]
        self._mean[rows] = mean = torch.lerp(proba, self._mean[rows], past)
        self._predicted[rows] = True
        self._follow(self._present, mean.mean(0), len(rows))

    @torch.no_grad()
    def of(self, rows: Tensor) -> Tensor:
        """Targets of some rows: (m, K), each summing to 1, or to 0 where the row has none."""
        settings = self._settings
        guess = self._mean[rows]
        if settings.align:
            guess = guess * (self.frequencies / self._present.clamp_min(_LEAST))
        if self._votes is not None:
            guess = guess * self._votes[rows]
        log_target = guess.clamp_min(_LEAST).log()
        if settings.own == "mixture":
            log_target = log_target + self._mixture(rows, guess)
        elif settings.own:
            log_target = self._evidence[rows].plus(log_target)
        posterior = torch.softmax(log_target, dim=1)
        largest = posterior.amax(dim=1, keepdim=True)
        limit: Tensor | float = settings.threshold
        if settings.relative:
            self._sureness = (
                largest.mean()
                if self._sureness is None
                else self._follow(self._sureness, largest.mean(), len(rows))
            )
            limit = settings.threshold * self._sureness
        sure = largest > limit
        if settings.temperature == 0:
            sharp = functional.one_hot(posterior.argmax(dim=1), posterior.shape[1]).to(posterior)
        else:
            sharp = torch.softmax(log_target / settings.temperature, dim=1)
        found = sharp * sure
        if settings.balance:
            self._follow(self._chosen, found.mean(0), len(rows))
            weight = (
                self.frequencies * self._chosen.sum() / self._chosen.clamp_min(_LEAST)
            ).clamp_max(_HEAVIEST)
            found = found * (found @ weight)[:, None]
        self._taught += found.sum(0)
        return found

    def _follow(self, mean: Tensor, now: Tensor, rows: int) -> Tensor:
        """Move a mean over batches, in place, towards that of this batch."""
        return mean.lerp_(now, min(1.0, _FOLLOWED * rows / _FOLLOWED_ROWS))

    @torch.no_grad()
    def begin_epoch(self) -> None:
        """Count targets anew; with own="mixture", find how likely each noisy label is right from
        the losses of all rows."""
        self._taught.zero_()
        if self._settings.own != "mixture":
            return
        losses = []
        for rows in torch.arange(len(self._mean), device=self._mean.device).split(
            max(1, _CELLS // self._mean.shape[1])
        ):
            losses.append(
                -(self._mean[rows] * _members(self._evidence[rows], self._mean.shape[1]))
                .sum(1)
                .clamp_min(_LEAST)
                .log()
            )
        self._right = _lower_of_two(torch.cat(losses))

    def tell(self) -> None:
        """Warn of classes that occur by the noisy labels, and that no target of the last epoch was
        of."""
        missing = (self._taught == 0) & (self.frequencies > 0.1 / len(self.frequencies))
        _tell_of_missing(missing, "In the last epoch no row was sure enough to be taught")

    def _mixture(self, rows: Tensor, guess: Tensor) -> Tensor:
        inside, right = _members(self._evidence[rows], self._mean.shape[1]), self._right[rows, None]
        share = (guess * inside).sum(1, keepdim=True) / guess.sum(1, keepdim=True)
        return (1 - right + right * inside / share.clamp_min(_LEAST)).clamp_min(_LEAST).log()


def _weights(given: Any, evidence: Form, n_classes: int) -> Tensor:
    """First predictions as weights (n, K), checked."""
    weights = (
        given.cpu() if isinstance(given, Tensor) else torch.as_tensor(_validate.floats(first=given))
    )
    if weights.shape != (len(evidence), n_classes) or not bool(
        ((weights >= 0) & weights.isfinite()).all()
    ):
        raise InvalidInput(
            "Expected first predictions as finite weights >= 0 of shape"
            f" {(len(evidence), n_classes)}, got shape {tuple(weights.shape)}, or others. Give a"
            " probability of each class for each row."
        )
    return weights


def _first_weights(given: Any, frequencies: Tensor) -> Tensor:
    """First predictions (n, K), as multiples of the class frequencies (n, K)."""
    weights = torch.as_tensor(given).to(frequencies)
    total = weights.sum(dim=1, keepdim=True)
    shares = torch.where(total > 0, weights / total.clamp_min(_LEAST), frequencies)
    return torch.lerp(shares, frequencies, _PRIOR_SHARE) / frequencies


def _lower_of_two(values: Tensor) -> Tensor:
    """The chance of each value (n,) to be of the lower of two normal distributions, fitted by
    EM."""
    x = (values - values.min()) / (values.max() - values.min()).clamp_min(_LEAST)
    mean, variance, share = x.new_tensor([0.0, 1.0]), x.new_full((2,), 0.1), x.new_full((2,), 0.5)
    for _ in range(_EM_STEPS):
        joint = share.log() - 0.5 * variance.log() - 0.5 * (x[:, None] - mean) ** 2 / variance
        part = torch.softmax(joint, dim=1)
        total = part.sum(0).clamp_min(_LEAST)
        mean, share = (part * x[:, None]).sum(0) / total, total / len(x)
        variance = ((part * (x[:, None] - mean) ** 2).sum(0) / total).clamp_min(1e-3)
    return part[:, int(mean.argmin())]


def frequencies_of(evidence: Form, n_classes: int, first: Any = None) -> Tensor:
    """The class frequencies (K,) that make the noisy labels likeliest, beside first predictions; of
    many rows, some are looked at."""
    some = slice(None, None, max(1, len(evidence) * n_classes // _COUNTED_CELLS))
    likelihood = np.asarray(_likelihood(evidence[some], n_classes).double().cpu())
    if first is None:
        return torch.from_numpy(likeliest_frequencies(likelihood)).float()
    # What rows were asked may have been chosen by these predictions.
    return torch.from_numpy(
        frequencies_beside(likelihood, np.asarray(_weights(first, evidence, n_classes)[some]))
    ).float()


def _likelihood(evidence: Form, n_classes: int) -> Tensor:
    """Likelihoods (m, K) of each class, as multiples of the row's largest, so that none of them
    overflows."""
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
        Number of neighbours, by the cosine of their features, cut to n - 1. As a rule of thumb
        their noisy labels together should tell some 20 nats.

    Returns
    -------
    (n, K) float32 tensor on the features' device: for each row the class frequencies that make the
    noisy labels of its neighbours likeliest. The row's own noisy label has no part in them.

    Raises
    ------
    InvalidInput
        Features that are not finite, or not one for each row of evidence, or of fewer than two
        rows; evidence that is no form, or of other classes.

    See Also
    --------
    Consistency : starts from these where its `neighbours` is above 0.

    Notes
    -----
    Guarantee: post-processing of released labels. Cost: O(n^2 d) for the neighbours, then 40 steps
    of EM, O(n count K) each, on the features' device. Source: the vote of neighbours in Feng et
    al., "SSR" (2022), with the law's likelihood instead of labels.
    """
    _require_evidence(evidence, n_classes)
    if (
        not isinstance(features, Tensor)
        or features.ndim != 2
        or len(features) != len(evidence)
        or len(features) < 2
        or not features.is_floating_point()
    ):
        raise InvalidInput(
            f"Expected features as a tensor of floats (n, d), of the {len(evidence)} rows of"
            f" evidence, two rows or more, got a {type(features).__name__} of shape"
            f" {np.shape(features)}. torch.from_numpy makes a tensor of an array."
        )
    if not bool(features.isfinite().all()):
        raise InvalidInput("Expected finite features, got NaN or infinity.")
    evidence = evidence.to(features.device)
    count = min(_validate.integer(count=count, low=1), len(features) - 1)
    start = frequencies_of(evidence, n_classes).to(features.device)
    found = []
    for near in _nearest(features, count):
        for some in near.split(max(1, _CELLS // (count * n_classes))):
            likelihood = _likelihood(evidence[some.flatten()], n_classes).view(
                len(some), count, n_classes
            )
            mix = start.repeat(len(some), 1)
            for _ in range(_EM_STEPS):
                posterior = mix[:, None] * likelihood
                mix = (posterior / posterior.sum(dim=2, keepdim=True)).mean(dim=1)
            found.append(mix)
    return torch.cat(found)


def _nearest(features: Tensor, count: int) -> Iterator[Tensor]:
    """Yield the nearest other rows (m, count) of each row, block by block of rows."""
    # squares of huge numbers overflow
    largest = features.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(features.dtype).tiny)
    unit = functional.normalize((features / largest).float(), dim=1)
    for rows in torch.arange(len(unit), device=unit.device).split(
        max(1, (_CELLS << 1) // len(unit))
    ):
        cosines: Any = unit[rows] @ unit.T
        cosines[torch.arange(len(rows), device=unit.device), rows] = -2.0  # not itself
        yield cosines.topk(count, dim=1).indices


# Groups of rows
# --------------------------------------------------------------------------------------------------


@torch.no_grad()
def group_votes(groups: Any, evidence: Any, n_classes: int) -> Tensor:
    """Estimate each row's class probabilities from the noisy labels of its group, such as a cluster
    of public features.

    Parameters
    ----------
    groups : (n,) int64 tensor or array
        Numbers from 0; made without labels.
    evidence : Form of n rows
        Of `evidence_of`.
    n_classes : int
        K.

    Returns
    -------
    (n, K) float32 tensor on the evidence's device: for each row the class frequencies that make the
    noisy labels of its group likeliest. The row's own noisy label has a part in them.

    Raises
    ------
    InvalidInput
        Groups that are not one whole number >= 0 for each row of evidence; evidence that is no
        form, or of other classes.

    See Also
    --------
    denoise : keeps the labels of rows that agree with the vote.
    neighbour_votes : the same of each row's nearest rows.

    Notes
    -----
    Guarantee: post-processing of released labels. Cost: 40 steps of EM, O(n K) each.
    """
    _require_evidence(evidence, n_classes)
    where = _numbers(evidence, groups=groups).unique(return_inverse=True)[1]
    likelihood, size = _likelihood(evidence, n_classes), torch.bincount(where)[:, None]
    mix = frequencies_of(evidence, n_classes).to(likelihood).repeat(len(size), 1)
    for _ in range(_EM_STEPS):
        posterior = mix[where] * likelihood
        mix = (
            torch.zeros_like(mix).index_add_(
                0, where, posterior / posterior.sum(dim=1, keepdim=True)
            )
            / size
        )
    return mix[where]


def denoise(groups: Any, evidence: Any, n_classes: int) -> Candidates:
    """Keep the labels of rows whose noisy label agrees with the vote of their group: the labels of
    DenoiseSSL.

    Parameters
    ----------
    groups : (n,) int64 tensor or array
        Numbers from 0, such as clusters of public features; made without labels.
    evidence : Form of n rows
        Of `evidence_of`. Take randomized response: a set of classes agrees with a vote too easily.
    n_classes : int
        K.

    Returns
    -------
    Candidates of n rows, as those of `consensus`: give them to `train` in place of the evidence,
    with a `Consistency` that teaches the rows without a label; the paper's is
    `Consistency.fixmatch()`.

    Raises
    ------
    InvalidInput
        As in `group_votes` and `consensus`.

    Warns
    -----
    LostClassWarning
        No row agrees on some class.

    Notes
    -----
    Guarantee: post-processing of released labels. Cost: as `group_votes`. Source: Tang et al.,
    "Machine Learning with Differentially Private Labels" (2022), Algorithm 7, with the vote of the
    noisy labels in place of that of the raw ones.

    Examples
    --------
    >>> import labeldp as ldp
    >>> y = [0, 0, 0, 1, 1, 1]
    >>> labels = ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(1))
    >>> noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, 4.0))
    >>> kept = denoise(y, ldp.deep.evidence_of(noisy), 2)
    >>> kept.indices[:, 0].tolist(), int((kept.rest < 0).sum())
    ([0, 0, 0, 1, 1, 1], 6)
    """
    return consensus(evidence, group_votes(groups, evidence, n_classes).argmax(1), n_classes)


@torch.no_grad()
def consensus(evidence: Any, predicted: Any, n_classes: int) -> Candidates:
    """Keep the labels of rows whose noisy label agrees with a prediction; the other rows lose
    theirs.

    With a net's own predictions this is a round of consensus retraining; with the votes of
    clusters, `denoise`.

    Parameters
    ----------
    evidence : Form of n rows
        Of any law: an output agrees with a class for which it speaks no less than for any other.
    predicted : (n,) int64 tensor or array
        Class codes.
    n_classes : int
        K.

    Returns
    -------
    Candidates of n rows. Where both agree the predicted class is certain; elsewhere all classes are
    equally likely, so that `likelihood_loss` has no gradient. `found.rest < 0` says which rows
    agree.

    Raises
    ------
    InvalidInput
        Predictions that are not one class code for each row of evidence; evidence that is no form,
        or of other classes; no row agrees.

    Warns
    -----
    LostClassWarning
        No row agrees on some class, so that none has it as its label.

    See Also
    --------
    denoise : with predictions by clusters.

    Notes
    -----
    Guarantee: post-processing of released labels. Kept labels are taken for true ones: where
    predictions are right with chance a, errors are uniform and the law is randomized response, a
    share of e^eps / (e^eps + (1 - a) / a) of them is true. Source: Tang et al. (2022), Algorithm 7;
    Das et al. (2025) for consensus retraining.
    """
    _require_evidence(evidence, n_classes)
    codes = _numbers(evidence, n_classes, predicted=predicted)[:, None]
    parts = torch.arange(len(codes), device=codes.device).split(max(1, _CELLS // n_classes))
    agree = torch.cat(
        [_members(evidence[rows], n_classes).gather(1, codes[rows]) for rows in parts]
    )[:, 0]
    if not bool(agree.any()):
        raise InvalidInput(
            "Expected predictions that agree with some noisy label, got none that does. Predict by"
            " other features."
        )
    kept = torch.bincount(codes[agree, 0], minlength=n_classes)
    _tell_of_missing(kept == 0, "No row's noisy label agrees with the prediction of")
    return labels_of_some(codes[:, 0], agree)


def labels_of_some(codes: Tensor, known: Tensor) -> Candidates:
    """Evidence of rows whose class (n,) is certain where it is known (n,), and may be any
    elsewhere."""
    return Candidates(
        codes[:, None],
        torch.zeros(len(codes), 1, device=codes.device),
        torch.where(known, -torch.inf, 0.0),
    )


def _numbers(rows: Any, limit: int | None = None, **named: Any) -> Tensor:
    """Check whole numbers from 0, one for each row, on the device of the rows."""
    ((name, given),) = named.items()
    _validate.unmasked(**named)
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError):  # text, lists of unequal lengths
        found = torch.empty(0)
    whole = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    whole = whole and found.shape == (len(rows),) and len(found) > 0
    if not whole or int(found.min()) < 0 or (limit is not None and int(found.max()) >= limit):
        ends, shape = (
            "from 0" if limit is None else f"in 0..{limit - 1}",
            (f" of shape {tuple(found.shape)}" if found.numel() else ""),
        )
        raise InvalidInput(
            f"Expected {name} as {len(rows)} whole numbers {ends}, one a row, got others{shape}."
        )
    return found.long().to(rows.device if isinstance(rows, Tensor) else rows.tensors[0].device)


def _members(evidence: Form, n_classes: int) -> Tensor:
    """Which classes (n, K) an output speaks for no less than for any other."""
    return _likelihood(evidence, n_classes) > _MEMBER


def _require_evidence(evidence: Any, n_classes: int) -> None:
    if not isinstance(evidence, Form):
        raise InvalidInput(
            f"Expected evidence as a form, got {type(evidence).__name__}. Pass evidence_of(noisy)."
        )
    if not evidence.fits(_validate.integer(n_classes=n_classes, low=2)):
        raise InvalidInput(
            f"Expected the number of classes of the evidence, got n_classes={n_classes}."
        )
    if looks(None, evidence.tensors[0]):
        require_log_likelihood(evidence)


def _tell_of_missing(missing: Tensor, what: str) -> None:
    """Warn of classes, by code, that training learns nothing of here."""
    if bool(missing.any()):
        codes = ", ".join(str(code) for code in missing.nonzero()[:, 0].tolist())
        warnings.warn(
            f"{what} class {codes} (by code). Training goes on without.",
            LostClassWarning,
            stacklevel=4,
        )
