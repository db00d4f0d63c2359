# SPDX-License-Identifier: Apache-2.0
"""FixMatchTeacher: a teacher of PATE-FM, which learns from its shard's labels and from the inputs
of all rows."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labeldp import _validate
from labeldp.deep._consistency import Consistency, labels_of_some
from labeldp.deep._estimator import template_of
from labeldp.deep._inputs import Resident
from labeldp.deep._loop import Recipe, predict, train
from labeldp.errors import InvalidInput

UNLABELLED = 7  # rows without a label for each one with, as in FixMatch

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class FixMatchTeacher:
    """A teacher for `PATEClassifier(teacher=...)`: a net that knows the labels of its own shard,
    and learns from all inputs by FixMatch.

    Parameters
    ----------
    net : function () -> nn.Module
        Makes a new net, which returns logits (m, K). Its weights come from torch's global
        generator, which each teacher has seeded for itself.
    recipe : Recipe, default=Recipe()
        The training. One without `consistency`, as the default is, gets
        `Consistency.fixmatch(warm_up=1)`: of a net that has seen no label yet, no belief is to be
        taught. `weight` is the paper's: beside the mean loss of the inputs with a label.
    shape : tuple of int, optional
        Shape of one input, such as (3, 32, 32), if rows are flat, as `PATEClassifier` passes them.
        `augment.rand_augment` takes images of values in 0..1; give another change by
        `Consistency.fixmatch(strong=...)` for other inputs.
    device : torch.device or str, default="cpu"

    Raises
    ------
    InvalidInput
        A net that is no function, a recipe that is none. Before the charge: a shape that does not
        fit, or a net without one output for each class.

    See Also
    --------
    labeldp.papers.malek2021.PATEClassifier : trains the teachers inside the one door, and releases
    the noisy majority of their votes. Consistency.fixmatch : the same from noisy labels of all rows
    (LDP-SSL).

    Notes
    -----
    Guarantee: none by itself. It reads raw labels, so nobody but `PATEClassifier` may call it. It
    prints, keeps and sends nothing; `net` and the functions in `recipe` must not either. A ledger
    knows it by its class alone: after a change of its settings take another `random_state`, which
    is a new charge. One of eight inputs of an epoch has a label, for which the shard's rows are
    repeated. Cost: a training on all rows for each teacher. Source: Tang et al., "Machine Learning
    with Differentially Private Labels" (2022), Algorithms 4, 5 (PATE-FM); Sohn et al., "FixMatch"
    (2020).

    Examples
    --------
    >>> from labeldp.deep import Recipe, augment, models
    >>> teacher = FixMatchTeacher(
    ...     models.SmallConvNet, Recipe(epochs=20, augment=augment.flip), shape=(1, 28, 28)
    ... )
    """

    net: Callable[[], nn.Module]
    recipe: Recipe = field(default_factory=Recipe)
    shape: tuple[int, ...] | None = None
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        if isinstance(self.net, nn.Module):
            raise InvalidInput(
                "Expected net as a function that makes a net for each teacher, got"
                f" {type(self.net).__name__} itself."
            )
        _validate.function(net=self.net, takes="no argument")
        if not isinstance(self.recipe, Recipe):
            raise InvalidInput(
                f"Expected a Recipe, got {type(self.recipe).__name__}. Leave it out for the default"
                " one."
            )
        if self.recipe.consistency is None:
            object.__setattr__(
                self,
                "recipe",
                replace(
                    self.recipe,
                    consistency=Consistency.fixmatch(warm_up=min(1, self.recipe.epochs - 1)),
                ),
            )

    def __call__(self, X: Any, rows: Rows, codes: Rows, asked: Rows) -> Rows:
        """Train on all inputs and the shard's codes, and vote.

        Parameters
        ----------
        X : (n, ...) array
            Inputs of all rows.
        rows : (m,) int64
            Positions of the shard's rows.
        codes : (m,) int64
            Their raw class codes.
        asked : (q,) int64
            Positions of the rows to vote on.

        Returns
        -------
        (q,) int64 class codes.
        """
        inputs = self._inputs(X)
        times = -(-len(inputs) // (UNLABELLED * len(rows)))
        labelled = torch.as_tensor(rows).repeat(times)
        codes_of_all = torch.cat(
            (torch.zeros(len(inputs), dtype=torch.int64), torch.as_tensor(codes).repeat(times))
        )
        evidence = labels_of_some(codes_of_all, torch.arange(len(codes_of_all)) >= len(inputs))
        generator = torch.Generator().manual_seed(torch.initial_seed() % (1 << 63))
        every = torch.cat((inputs, inputs[labelled]))
        shared = self.recipe.consistency
        assert shared is not None
        # The loss of the labels is a mean over all inputs of a batch, and FixMatch's one over those
        # with a label.
        recipe = replace(
            self.recipe,
            consistency=replace(shared, weight=shared.weight * len(labelled) / len(every)),
        )
        with warnings.catch_warnings():
            # which class is lost, for example, follows from raw labels
            warnings.simplefilter("ignore")
            net = train(
                self.net(), every, evidence, recipe, generator=generator, device=self.device
            )
        return predict(net, inputs[torch.as_tensor(asked)]).argmax(1).cpu().numpy()

    def require_outputs(self, X: Any, n_classes: int) -> None:
        """Refuse inputs of another shape, or a net without one output for each class;
        `PATEClassifier` asks for it before the charge.

        Parameters
        ----------
        X : (n, ...) array
        n_classes : int
        """
        inputs = Resident(self._inputs(X))
        template_of(
            lambda _: self.net(),
            n_classes,
            0,
            next(inputs.batches([inputs.telling()])),
            sizes=(n_classes,),
        )

    def _inputs(self, X: Any) -> Tensor:
        rows = torch.as_tensor(np.asarray(X))
        shape = self.shape or tuple(rows.shape[1:])
        if math.prod(shape) != math.prod(rows.shape[1:]):
            raise InvalidInput(
                f"Expected rows with the numbers of shape {shape}, got rows of shape"
                f" {tuple(rows.shape[1:])}. Nothing was charged. Give the teacher the shape of one"
                " input."
            )
        return (rows.float() if rows.is_floating_point() else rows).reshape(len(rows), *shape)
