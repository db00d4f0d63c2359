# SPDX-License-Identifier: Apache-2.0
"""TorchRegressor: train any torch net on private numbers of a public range, on the exact likelihood
of what was released.

A net learns the distribution of each row's number over the range's grid. It gives a logit for each
point; or two numbers, the location and the scale of a distribution, which `LocationHead` integrates
over the points. Everything else (stages, laws, losses, a fit's folder) is that of classes, since a
grid's points are the classes of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional

from labeldp import _validate
from labeldp.deep._estimator import NetEstimator, template_of
from labeldp.deep._loop import Epoch, Recipe
from labeldp.deep.models import Ensemble
from labeldp.laws import Law
from labeldp.protocol._estimator import RegressorEstimator
from labeldp.protocol._prior import Prior
from labeldp.protocol.metrics import points_of

if TYPE_CHECKING:
    pass

Floats = NDArray[np.float64]
Head = Literal["logistic", "normal", "grid"]

HEADS: tuple[Head, ...] = ("logistic", "normal", "grid")
_BEYOND = 2.0  # ranges by which a location may lie outside of the range
_START = 0.25  # the range's share that is the scale where a net gives 0
# of logarithms of scales: nearer to its lower end a scale would hardly have a gradient
_APART = 0.1
_WHAT = "a location and a scale (head='grid' takes a logit for each point)"


class LocationHead(nn.Module):
    """A net of two outputs as one of log-probabilities over a grid: a location and a scale, of a
    variable clamped and rounded to the grid.

    Outputs of 0 are the middle of the range, and a quarter of it as scale. The scale stays between
    half a step of the grid and the range.

    Parameters
    ----------
    net : nn.Module
        Returns (m, 2).
    points : (G,) array, increasing
    family : {"logistic", "normal"}
        The variable's distribution around its location.
    """

    middles: Tensor
    steps: Tensor

    def __init__(
        self, net: nn.Module, points: ArrayLike, family: Literal["logistic", "normal"]
    ) -> None:
        super().__init__()
        self.net, self.family = net, _validate.one_of(HEADS[:2], head=family)
        given = np.asarray(points, np.float64)
        self.low, self.high, self.least = (
            float(given[0]),
            float(given[-1]),
            float(np.diff(given).min()) / 2,
        )
        middles = (given[1:] + given[:-1]) / 2
        # Not persistent: a state_dict is the net's alone. Counted from the middle of the range, so
        # that float32 keeps points apart.
        self.register_buffer(
            "middles",
            torch.tensor(middles - (self.low + self.high) / 2, dtype=torch.float32),
            persistent=False,
        )
        self.register_buffer(
            "steps", torch.tensor(np.diff(middles), dtype=torch.float32), persistent=False
        )

    def extra_repr(self) -> str:
        """Show family, range and number of points."""
        return f"{self.family}, {self.low:g} to {self.high:g} in {len(self.middles) + 1} points"

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute ln P[point] for each input: (m, G) float32."""
        found = self.net(inputs).float()
        reach = self.high - self.low
        location = (_START * reach * found[:, :1]).clamp(
            -(0.5 + _BEYOND) * reach, (0.5 + _BEYOND) * reach
        )
        low, high, start = math.log(self.least), math.log(reach), math.log(_START * reach)
        # Half a step of two or three points is not below a quarter of the range: the scale then
        # starts between its ends.
        begin = math.log((start - low) / (high - start)) if start - low > _APART else 0.0
        scale = torch.exp(low + (high - low) * torch.sigmoid(found[:, 1:] + begin))
        z = (self.middles - location) / scale
        return (
            self._logistic(z, self.steps / scale) if self.family == "logistic" else self._normal(z)
        )

    def _logistic(self, z: Tensor, steps: Tensor) -> Tensor:
        """Compute the logarithms of the masses between middles `steps` apart; exact in both
        tails."""
        below, above = functional.logsigmoid(z), functional.logsigmoid(-z)
        # F(b) - F(a) = F(b) (1 - F(a)) (1 - e^(a - b))
        between = below[:, 1:] + above[:, :-1] + torch.log(-torch.expm1(-steps))
        return torch.cat([below[:, :1], between, above[:, -1:]], dim=1)

    def _normal(self, z: Tensor) -> Tensor:
        """Compute the logarithms of the masses between the middles, each from its tail's side,
        where the difference keeps its digits."""
        left, right = z[:, :-1], z[:, 1:]
        upper = left + right > 0
        low, high = torch.where(upper, -right, left), torch.where(upper, -left, right)
        log_low, log_high = _log_normal(low), _log_normal(high)
        between = log_high + torch.log(-torch.expm1(log_low - log_high))
        return torch.cat([_log_normal(z[:, :1]), between, _log_normal(-z[:, -1:])], dim=1)


def _log_normal(z: Tensor) -> Tensor:
    """Compute ln P[a standard normal variable is below z]; torch's own has a wrong gradient in
    float32 below -1000."""
    below, above = z.clamp(max=0), z.clamp(min=0)
    tail = torch.log(torch.special.erfcx(-below / math.sqrt(2)) / 2) - below * below / 2
    return torch.where(z < 0, tail, torch.log1p(-torch.special.erfc(above / math.sqrt(2)) / 2))


def with_location(net: nn.Module, points: ArrayLike, family: str) -> nn.Module:
    """Put a `LocationHead` on a net, or on each net of an Ensemble."""
    if isinstance(net, Ensemble):
        return Ensemble([with_location(each, points, family) for each in net.nets])
    return LocationHead(net, points, family)  # type: ignore[arg-type]  # it checks the name


class TorchRegressor(RegressorEstimator, NetEstimator):
    """Train any torch net on numbers under label differential privacy, in one stage or several.

    Parameters
    ----------
    module : nn.Module, or function from the number of outputs to one
        Returns (m, 2), or (m, G) with head="grid". Copied, never changed. No default.
    head : {"logistic", "normal", "grid"}, default="logistic"
        What the net's outputs are. "logistic", "normal": location and scale of the number's
        distribution, which is integrated over the grid's points. "grid": a logit for each point,
        for numbers that do not lie around one location, such as ratings.
    recipe : Recipe or sequence of one a stage, default=None
        Training settings, as for `TorchClassifier`. None: `Recipe()`.
    epsilon : float > 0, default=1.0
        Total label-DP budget of a fit, for one unit (a row, or the labels' own unit).
    stages
        As for `TorchClassifier`. Later stages are asked about bins around what the model so far
        expects.
    law : str or Law, default="auto"
        A law's name, or a Law with this epsilon over the grid's points. "auto": `SquareWave`, of
        more than 700 points `Threshold`; and `PriorBins` in later stages.
    prior : (n, G) array of floats >= 0, function of X, or Prior, default=None
        Public weights of the grid's points for the first stage; they must not depend on these
        numbers.
    validation_fraction : float in [0, 1), default=0.0
        Share of the rows held out of training, to measure the model by their noisy labels, which
        answer about uniformly random thresholds. A net is not trained twice, so it would lose them,
        and the default is 0. Pass 0.1 for the estimates below.
    random_state, device, folder, progress
        As for `TorchClassifier`.

    Attributes
    ----------
    grid_ : (G,) float64 array
    module_ : nn.Module
        Trained, in evaluation mode; returns the logits of the grid's points. With two outputs it is
        a `LocationHead`, whose `net` is yours.
    noisy_labels_ : NoisyLabels of all rows, in the order of X
    privacy_ : PrivacySpent
    receipts_ : tuple of Receipt
    stages_ : tuple of Stage
    estimated_rmse_, estimated_r2_ : Estimate or None
        Estimated root mean squared error and R^2 on the true numbers, on held-out noisy rows that
        chose no epoch. None if there are fewer than 20 such rows (by default there are none).
    baseline_rmse_ : Estimate or None
        The error of a constant, the mean of the other rows.
    history_ : list of lists of Epoch, one for each stage
    n_features_in_ : int
        Number of columns of X, if it is a table.

    See Also
    --------
    labeldp.LabelDPRegressor : the same for any regressor of scikit-learn.
    TorchClassifier : the same for classes; its page describes what both share.

    References
    ----------
    Tobin (1958), "Estimation of relationships for limited dependent variables", for clamped
    numbers.

    Notes
    -----
    Guarantee: everything that the fit returns or stores is epsilon-label-DP. Each number is
    randomized once, and all else is post-processing of the outputs. Features are not protected.

    Model: with two outputs, a row's number is a logistic or normal variable with a location and a
    scale of its own, clamped to the range and rounded to the grid; with head="grid" any
    distribution over the points. Both are fitted by exact maximum likelihood of what was released,
    -ln sum_v P[v | x] P[released | v]. `predict` gives the mean. Cost beyond the net: O(G) a row.

    Examples
    --------
    >>> import labeldp as ldp
    >>> from labeldp.deep import Recipe
    >>> from labeldp.deep.models import Mlp
    >>> X = np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32)
    >>> y = 5 + X @ [1.5, -1.0, 0.5]
    >>> net = TorchRegressor(
    ...     lambda k: Mlp(3, k, (32,)),
    ...     recipe=Recipe(epochs=5),
    ...     epsilon=4.0,
    ...     random_state=0,
    ... )
    >>> labels = ldp.PrivateLabels(y, range=(0, 10), noise=ldp.SeededNoise(0))
    >>> bool(net.fit(X, labels).score(X, y) > 0.7)
    True
    """

    def __init__(
        self,
        module: nn.Module | Callable[[int], nn.Module],
        *,
        head: Head = "logistic",
        recipe: Recipe | Sequence[Recipe] | None = None,
        epsilon: float = 1.0,
        stages: int | Sequence[float] = 1,
        law: str | Law = "auto",
        prior: ArrayLike | Callable[[Any], ArrayLike] | Prior | None = None,
        validation_fraction: float = 0.0,
        random_state: Any = None,
        device: Any = "auto",
        folder: str | Path | None = None,
        progress: Callable[[Epoch], object] | None = None,
    ) -> None:
        self.module = module
        self.head = head
        self.recipe = recipe
        self.epsilon = epsilon
        self.stages = stages
        self.law = law
        self.prior = prior
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.folder = folder
        self.progress = progress

    def _require_settings(self) -> None:
        super()._require_settings()
        self._require_prior_of_numbers()
        _validate.one_of(HEADS, head=self.head)

    def _template(self, classes: Sequence[object], seed: int, few: Tensor) -> nn.Module:
        points = points_of(classes)
        if self.head == "grid":
            return super()._template(classes, seed, few)
        return with_location(template_of(self.module, 2, seed, few, _WHAT), points, self.head)

    def predict_distribution(self, X: Any) -> Floats:
        """Predict probabilities of the true number's grid point: (n, G) float64, columns in the
        order of `grid_`.

        Parameters
        ----------
        X : as in `fit`
        """
        return self._probabilities(X)
