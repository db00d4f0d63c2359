# SPDX-License-Identifier: Apache-2.0
"""A net as the learner of `labeldp.protocol._fit.run_stages`: each stage trained by its recipe, from the weights of the stage before."""

import contextlib
import copy
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from labeldp.deep._checkpoint import Checkpoint, evidence_digest
from labeldp.deep._inputs import Inputs
from labeldp.deep._loop import Epoch, Precision, Recipe, default_recipe, from_first, is_first, predict, train
from labeldp.deep._losses import (
    Dense,
    Form,
    cross_entropy,
    debias_weights,
    debiased_loss,
    evidence_of,
    generalised_cross_entropy,
)
from labeldp.errors import InvalidInput, LostClassWarning
from labeldp.evidence import NoisyLabels
from labeldp.laws import Law
from labeldp.protocol._estimator import TopK, evidenced, in_top_k
from labeldp.protocol._fit import MIN_VALIDATION_ROWS, FitPlan, HeldOut
from labeldp.protocol._fit import Rows as Positions
from labeldp.protocol.metrics import lost_classes
from labeldp.receipt import Receipt

if TYPE_CHECKING:
    from labeldp.custody._run import Run

Floats = NDArray[np.float64]
HARD = (cross_entropy, generalised_cross_entropy)
"""Losses of hard noisy labels."""
_LOOKED_AT, _LOOKED_AT_CELLS = 10_000, 1 << 23


@dataclass(frozen=True, eq=False)
class TrainedNet:
    """The model of a stage.

    Attributes
    ----------
    module : nn.Module in evaluation mode
    number : int
        Of the stage, from 1.
    history : tuple of tuples of Epoch
        Of each stage so far.
    """

    module: nn.Module
    number: int
    history: tuple[tuple[Epoch, ...], ...]


@dataclass(frozen=True, eq=False)
class Trainer:
    """Everything that the stages of a fit share.

    Attributes
    ----------
    inputs : Inputs
    template : nn.Module
        With the first weights; never trained itself.
    recipes : tuple of Recipe
        One a stage.
    seed : int
    device : torch.device
    fabric : lightning.fabric.Fabric or None
    checkpoint : Checkpoint
    public_digest : function
        Gives the digest of the inputs.
    warm_start : bool
        Later stages start from the weights, and the statistics of batch normalisation, of the stage before.
    temperature : float
        Of the model as a prior.
    top_k_filter : int, "mean" or None
    progress : function of an Epoch, optional
    """

    inputs: Inputs
    template: nn.Module
    recipes: tuple[Recipe, ...]
    seed: int
    device: torch.device
    fabric: Any
    checkpoint: Checkpoint
    public_digest: Callable[[], str]
    warm_start: bool = True
    temperature: float = 1.0
    top_k_filter: TopK | None = None
    progress: Callable[[Epoch], object] | None = None

    def fit(self, rows: Positions, noisy: NoisyLabels, model: TrainedNet | None, held_out: HeldOut | None) -> TrainedNet:
        """The next stage's model, learned from all rows drawn so far; the kept one where an earlier attempt has finished it."""
        number = 1 if model is None else model.number + 1
        require_held_out(self.recipes[number - 1 : number], 0 if held_out is None else len(held_out[0]))
        rows, noisy, held_out = evidenced(rows, noisy, held_out)
        digest = evidence_digest(rows, noisy) if self.checkpoint.folder is not None else ""
        module = copy.deepcopy(self.template)
        kept = self.checkpoint.restored(number, module, digest)
        if kept is not None:
            history = () if model is None else model.history
            return TrainedNet(module.to(self.device).eval(), number, (*history, tuple(Epoch(**epoch) for epoch in kept)))
        learned, targets = rows, noisy
        if model is not None:
            if self.warm_start:
                module.load_state_dict(model.module.state_dict())
            if self.top_k_filter is not None:
                chosen = in_top_k(noisy, self.proba(model, rows), self.top_k_filter)
                learned, targets = rows[chosen], noisy[chosen]
        scored = None if held_out is None else self._scored(number, *held_out)
        trained = self.learn(module, model, learned, targets_of(targets, self.recipes[number - 1]), scored)
        self._tell_of_lost_classes(trained, rows, noisy)
        self.checkpoint.trained(number, trained.module, [asdict(epoch) for epoch in trained.history[-1]], digest)
        return trained

    def _scored(self, number: int, rows: Positions, noisy: NoisyLabels) -> tuple[Positions, Form]:
        """What each epoch's score comes from: all held-out rows, or where epochs are chosen by it, those that judge nothing else."""
        some = slice(None) if self.recipes[number - 1].patience is None else slice(0, None, 2)
        return rows[some], evidence_of(noisy[some])

    @property
    def permutation(self) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """Chooses the held-out rows of noisy labels; follows from the seed."""
        return np.random.default_rng(self.seed).permutation

    def judging(self, model: TrainedNet, held_out: Positions) -> Positions:
        """Of the held-out rows with evidence, those that chose nothing."""
        return held_out if all(recipe.patience is None for recipe in self.recipes) else held_out[1::2]

    def learn(
        self, module: nn.Module, model: TrainedNet | None, rows: Positions, target: Any, held_out: tuple[Positions, Any] | None
    ) -> TrainedNet:
        """Train a module, as the stage after `model`, on what its loss is given of these rows."""
        number, before = (1, ()) if model is None else (model.number + 1, model.history)
        history: list[Epoch] = []

        def told(epoch: Epoch) -> None:
            history.append(epoch)
            if self.progress is not None:
                self.progress(epoch)

        with seeded(self.seed, number, self.device) as generator:
            done = train(
                module,
                self.inputs.take(torch.from_numpy(rows)),
                target,
                self.recipes[number - 1],
                generator=generator,
                device=self.device,
                held_out=None if held_out is None else (self.inputs.take(torch.from_numpy(held_out[0])), held_out[1]),
                progress=told,
                fabric=self.fabric,
            )
        for weight, first in zip(done.parameters(), self.template.parameters(), strict=True):
            weight.requires_grad_(first.requires_grad)  # an averaged net has none
        return TrainedNet(done, number, (*before, tuple(history)))

    def _tell_of_lost_classes(self, trained: TrainedNet, rows: Positions, noisy: NoisyLabels) -> None:
        """Warn, in the first process, by some thousand rows; fewer where there are very many classes."""
        if not is_first():
            return
        looked_at = min(_LOOKED_AT, max(1, _LOOKED_AT_CELLS // noisy.n_classes))
        some = np.arange(0, len(rows), -(-len(rows) // looked_at))
        lost = lost_classes(noisy[some], self.proba(trained, rows[some]))
        if lost:
            warnings.warn(
                f"After stage {trained.number} the net gives no probability to {', '.join(map(repr, lost))}, though the noisy labels speak "
                "for it: a step was too large. Clip gradients, lower the rate, or fit again from another random_state; labels that were "
                "drawn are not drawn again.",
                LostClassWarning,
                stacklevel=2,
            )

    def prior_of(self, model: TrainedNet, rows: Positions) -> Floats:
        """What the model holds likely for these rows, made sharper or flatter by the temperature: (m, K)."""
        return self.proba(model, rows, self.temperature)

    def proba(self, model: TrainedNet, rows: Positions, temperature: float = 1.0) -> Floats:
        """Probabilities of the classes: (m, K)."""
        return softmax(model.module, self.inputs, rows, temperature, self.recipes[model.number - 1].precision, self.fabric)


def softmax(
    module: nn.Module, inputs: Inputs, rows: Positions, temperature: float = 1.0, precision: Precision = "auto", fabric: Any = None
) -> Floats:
    """Probabilities of the classes for these rows: (m, K) float64.

    Raises
    ------
    InvalidInput
        If a logit is not finite.
    """
    logits = predict(module, inputs.take(torch.from_numpy(rows)), precision=precision, fabric=fabric).double()
    bad = ~torch.isfinite(logits).all(dim=1)
    if bool(bad.any()):
        raise InvalidInput(
            f"Expected finite logits, got NaN or infinity for {int(bad.sum())} of {len(rows)} rows. Training has diverged: lower the rate, "
            "or clip gradients."
        )
    return np.asarray(torch.softmax(logits / temperature, dim=1).cpu().numpy(), np.float64)


class SharedRun:
    """A run of the first process whose outputs every process gets, noted in the fit's folder.

    Parameters
    ----------
    run : labeldp.custody._run.Run, or None in the other processes
    n_rows : int
    checkpoint : Checkpoint
    """

    def __init__(self, run: "Run | None", n_rows: int, checkpoint: Checkpoint) -> None:
        self._run, self._checkpoint, self.n_rows = run, checkpoint, n_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None and self._run is not None:
            self._run.settle()

    @property
    def receipt(self) -> Receipt | None:
        """The charge; None in the other processes."""
        return None if self._run is None else self._run.receipt

    def partition(self, fractions: tuple[float, ...]) -> NDArray[np.int16]:
        """Number of the part that each row is in."""
        return from_first(lambda: self._here().partition(fractions))

    def privatize(self, rows: Positions, law: Law, prior: Any = None, stage: str = "release") -> NoisyLabels:
        """Draw these rows, each once in the run."""
        noisy = from_first(lambda: self._here().privatize(rows, law, prior, stage))
        self._checkpoint.drawn(stage, noisy)
        return noisy

    def _here(self) -> "Run":
        assert self._run is not None, "only the first process draws"
        return self._run


def targets_of(noisy: NoisyLabels, recipe: Recipe) -> Any:
    """What a recipe's loss learns from: hard labels, debiasing weights, or log-likelihoods (losses of the user's own by default)."""
    loss = plain(recipe.loss)
    if takes_labels(loss):
        return torch.from_numpy(noisy.hard_codes())
    return debias_weights(noisy) if loss is debiased_loss else evidence_of(noisy)


def takes_labels(loss: Any) -> bool:
    """Whether a loss learns from hard labels: one of `HARD`, or one that says so."""
    return loss in HARD or bool(getattr(loss, "takes_labels", False))


def plain(loss: Any) -> Any:
    """The function that `functools.partial` was given."""
    return plain(loss.func) if isinstance(loss, functools.partial) else loss


def require_losses(recipes: Sequence[Recipe], plan: FitPlan) -> None:
    """Refuse, before anything is charged, to debias what will have no unbiased estimator."""
    if any(plain(recipe.loss) is debiased_loss for recipe in recipes) and not plan.invertible:
        raise InvalidInput(
            f"Expected one invertible law for all rows with debiased_loss, got {plan.stages.law} in {plan.stages.n_stages} stages. "
            "Use law='rr' or 'subset', n_stages=1 without a prior, or likelihood_loss."
        )


def require_held_out(recipes: Sequence[Recipe], n_held_out: int) -> None:
    """Refuse, before anything is charged, to choose epochs by rows that will not be there."""
    patience = next((recipe.patience for recipe in recipes if recipe.patience is not None), None)
    if patience is not None and n_held_out < MIN_VALIDATION_ROWS:
        raise InvalidInput(
            f"Expected at least {MIN_VALIDATION_ROWS} held-out rows with patience={patience}, got {n_held_out}. Raise validation_fraction, "
            "or leave out patience."
        )


def recipes_for(recipe: Any, n_stages: int, used: int, n_classes: int) -> tuple[Recipe, ...]:
    """A recipe for each stage that there will be: one for all, or a sequence of one a stage, of which the first ones are used.

    Parameters
    ----------
    recipe : Recipe, sequence of Recipe, or None
    n_stages : int
        As it was asked for.
    used : int
        Stages that there will be: one where a prior could not help.
    n_classes : int
    """
    if recipe is None:
        recipe = default_recipe(n_classes)
    if isinstance(recipe, Recipe):
        return (recipe,) * used
    found = tuple(recipe) if isinstance(recipe, Sequence) else (recipe,)
    if len(found) != n_stages or not all(isinstance(each, Recipe) for each in found):
        kinds = ", ".join(type(each).__name__ for each in found)
        raise InvalidInput(f"Expected a Recipe, or a sequence of one for each of n_stages={n_stages}; got {kinds or 'none'}.")
    return found[:used]


def make_template(module: Any, n_classes: int, seed: int, inputs: Inputs) -> nn.Module:
    """The net with its first weights, found to give K finite logits for these inputs.

    Parameters
    ----------
    module : nn.Module, which is copied, or function of K that makes one
    n_classes : int
    seed : int
        Of the weights that a function makes.
    inputs : Inputs
    """
    if isinstance(module, nn.Module):
        made = copy.deepcopy(module)
    elif callable(module):
        with seeded(seed, 0, torch.device("cpu")):
            made = module(n_classes)
    else:
        made = module
    if not isinstance(made, nn.Module) or not any(True for _ in made.parameters()):
        raise InvalidInput(
            f"Expected an nn.Module with weights, or a function of the number of classes that makes one; got {type(made).__name__}."
        )
    _require_output(made, n_classes, inputs)
    return made


def _require_output(module: nn.Module, n_classes: int, inputs: Inputs) -> None:
    few = next(iter(inputs.batches([torch.arange(min(2, len(inputs)))])))
    try:
        logits = predict(module, few, precision="float32")
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(
            f"Expected a net that takes inputs of shape {tuple(few.shape[1:])} and type {few.dtype}, got {type(error).__name__}: {error}. "
            "Nothing was drawn. Fit the net to the inputs, or reshape them."
        ) from error
    if logits.shape != (len(few), n_classes):
        raise InvalidInput(
            f"Expected logits of shape {(len(few), n_classes)} for {len(few)} inputs, one for each of {n_classes} classes; got "
            f"{tuple(logits.shape)}. Give the net {n_classes} outputs."
        )
    if not bool(torch.isfinite(logits).all()):
        raise InvalidInput("Expected finite logits of the net before training, got NaN or infinity. Check its first weights.")


@contextlib.contextmanager
def seeded(seed: int, number: int, device: torch.device) -> Iterator[torch.Generator]:
    """A generator for one step of a fit; torch's global one, of which dropout draws, is seeded alike and then put back."""
    derived = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derived)
        yield torch.Generator().manual_seed(derived)


def likelihood_table(log_likelihood: Any, n_rows: int) -> Dense:
    """A checked table of log-likelihoods as the losses take it.

    Raises
    ------
    InvalidInput
        Another shape than (n, K); NaN or +inf; a row that is zero for every class.
    """
    table = np.asarray(log_likelihood)
    if table.ndim != 2 or table.shape[0] != n_rows or table.shape[1] < 2 or table.dtype.kind not in "fiu":
        raise InvalidInput(
            f"Expected log_likelihood as numbers of shape ({n_rows}, K), a row for each of X and K >= 2; got shape {table.shape} of "
            f"{table.dtype}. Pass noisy.log_likelihood()."
        )
    if np.isnan(table).any() or (table == np.inf).any():
        raise InvalidInput("Expected log-likelihoods without NaN or +inf. Pass noisy.log_likelihood(); -inf is a likelihood of zero.")
    empty = np.flatnonzero((table == -np.inf).all(axis=1))
    if len(empty):
        raise InvalidInput(
            f"Expected a likelihood above 0 for some class of every row, got 0 for all in {len(empty)} rows, row {empty[0]} first."
        )
    return Dense(torch.from_numpy(table.astype(np.float32)))
