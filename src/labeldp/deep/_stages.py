# SPDX-License-Identifier: Apache-2.0
"""The stages of a net's fit, and the folder from which a killed fit resumes.

    Trainer        the learner for `protocol._fit.run_stages`: trains each stage by its recipe, from
                   the previous stage's weights
    SharedRun      the first process's run, whose outputs every process gets
    Checkpoint     the state of a fit in its folder
    described      describes recipes and nets as JSON-ready data, to recognise the same fit

A folder holds

    plan.json           public facts that identify the fit, and its seed, from which the random
                        numbers of every step follow
    initial.pt          weights before training
    receipt.json        the charge
    drawn-STAGE.json    rows, law, and digests of a stage's prior and outputs; the outputs
                        themselves are in the run's own store
    model-N.pt          weights after stage N, its history, and the digest of the noisy labels that
                        it learned from

Files are written by a `RunStore`: each appears whole or not at all, and is on disk when its step is
done. No file depends on raw labels, unless the user's net does. The contents of a user's function
or object are never described: a closure, an attribute, a default or a number of a module may be raw
labels, or be counted from them. Functions are described by their instructions and objects by their
types, without any value, length or digest of either. Values are described only for labeldp's own
settings, which are public.
"""

import contextlib
import copy
import fcntl
import functools
import io
import json
import os
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from labeldp import _validate
from labeldp._files import path_text
from labeldp._hash import array_digest, digest
from labeldp.deep._inputs import Inputs
from labeldp.deep._loop import (
    Epoch,
    Placement,
    Precision,
    Recipe,
    from_first,
    is_first,
    plain,
    predict,
    takes_labels,
    train_at,
)
from labeldp.deep._losses import Form, column_evidence, debias_weights, debiased_loss, evidence_of
from labeldp.deep.models import Ensemble
from labeldp.errors import InvalidInput, LabelDPWarning
from labeldp.evidence import NoisyLabels
from labeldp.laws import Grid, LabelColumns, Law
from labeldp.ledger._run_store import RunStore
from labeldp.protocol._estimator import evidenced, in_top_k
from labeldp.protocol._fit import MIN_VALIDATION_ROWS, FitPlan, HeldOut
from labeldp.protocol._fit import Rows as Positions
from labeldp.protocol._matching import spread
from labeldp.protocol._prior import Prior, TopK
from labeldp.protocol._several import columns_told
from labeldp.protocol.metrics import towards, warn_of_lost_classes
from labeldp.receipt import Receipt

if TYPE_CHECKING:
    from labeldp.custody._run import Run

Floats = NDArray[np.float64]
State = Mapping[str, Tensor]

_RESTORE = (
    "Restore the file, or use another folder: labels that were drawn are kept beside the ledger."
)
_TRAIN_AGAIN = "Delete the file: the stage is trained again, and no label is drawn again."
_FORMAT = 1  # of plan.json

_OURS = ("labeldp",)
_KNOWN = ("labeldp", "torch")  # described by name: their code belongs to a version, not to a fit
_DEEP = 12  # depth of nested values; deeper ones are described by their type
_MANY = 64  # a longer tuple counts as data, not as settings

_RATED = 1 << 15  # rows for mean probabilities


class RatedNet(nn.Module):
    """A net whose logits are shifted until the mean probability of each class is its known rate.

    Parameters
    ----------
    net : nn.Module
        Returns logits (m, K), those of one head after another, which stay as they are until `hold`.
    heads : sequence of (int, (K_l,) float64 or None)
        The number of outputs of each head, and the rates of its classes; None: no shift.
    """

    shift: Tensor

    def __init__(self, net: nn.Module, heads: Sequence[tuple[int, Floats | None]]) -> None:
        super().__init__()
        self.net, self.sizes = net, tuple(size for size, _ in heads)
        self.rates = tuple(None if known is None else tuple(known.tolist()) for _, known in heads)
        # stored and copied with the weights
        self.register_buffer("shift", torch.zeros(sum(self.sizes)))

    def know(self, rates: Floats) -> None:
        """Take (K,) rates of one head in the place of those that it was made with."""
        self.rates = (tuple(rates.tolist()),)

    def extra_repr(self) -> str:
        """Show the rates, by which a folder's fit is recognised."""
        return f"rates={self.rates if len(self.rates) > 1 else self.rates[0]}"

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits (m, K)."""
        return torch.as_tensor(self.net(x) + self.shift)

    def hold(self, logits: Tensor) -> None:
        """Shift the logits (n, K) that it gives now to the rates."""
        parts = [
            (
                np.zeros(size)
                if known is None
                else towards(np.array(known), scores.cpu().numpy(), np.ones(len(scores)))
            )
            for size, known, scores in zip(
                self.sizes, self.rates, logits.split(self.sizes, dim=1), strict=True
            )
        ]
        self.shift += torch.from_numpy(np.concatenate(parts)).to(self.shift)


def rated(module: nn.Module) -> list[RatedNet]:
    """Return the nets with known rates: the one itself, or those of several."""
    return [
        net
        for net in (module.nets if isinstance(module, Ensemble) else [module])
        if isinstance(net, RatedNet)
    ]


@dataclass(frozen=True, eq=False)
class TrainedNet:
    """The trained net of a stage.

    Attributes
    ----------
    module : nn.Module in evaluation mode
    number : int
        Number of the stage, from 1.
    history : tuple of tuples of Epoch
        Epochs of each stage so far.
    """

    module: nn.Module
    number: int
    history: tuple[tuple[Epoch, ...], ...]


@dataclass(frozen=True)
class StageSettings:
    """Settings of the stages; `TorchClassifier` documents them.

    Attributes
    ----------
    recipes : tuple of Recipe
        One per stage.
    temperature : float
        Temperature of a model's probabilities as prior.
    top_k_filter : int, "mean" or None
    progress : function of an Epoch, optional
    """

    recipes: tuple[Recipe, ...]
    temperature: float = 1.0
    top_k_filter: TopK | None = None
    progress: Callable[[Epoch], object] | None = None


@dataclass(frozen=True, eq=False)
class Trainer:
    """The learner of each stage of a fit, with everything that the stages share.

    Attributes
    ----------
    inputs : Inputs
    template : nn.Module
        The net with its initial weights; copied for each training.
    settings : StageSettings
    seed : int
    device : torch.device
    fabric : lightning.fabric.Fabric or None
    checkpoint : Checkpoint
    public_digest : function
        Computes the digest of the inputs.
    first : (n, K) float64, optional
        The prior of the first stage's rows, by which its targets begin where its recipe has any.
    columns : LabelColumns, optional
        Several label columns, for each of which the net has a head: its outputs are their classes,
        one column after another.
    """

    inputs: Inputs
    template: nn.Module
    settings: StageSettings
    seed: int
    device: torch.device
    fabric: Any
    checkpoint: "Checkpoint"
    public_digest: Callable[[], str]
    first: Floats | None = None
    columns: LabelColumns | None = None

    def fit(
        self,
        rows: Positions,
        noisy: NoisyLabels,
        model: TrainedNet | None,
        held_out: HeldOut | None,
    ) -> TrainedNet:
        """Learn the next stage's model from all rows drawn so far, or load it if an earlier attempt
        has finished the stage."""
        number = 1 if model is None else model.number + 1
        rows, noisy, held_out = evidenced(rows, noisy, held_out)
        if held_out is None:  # some are enough here: of a charge, chance decides how many they are
            require_held_out(self.settings.recipes[number - 1 : number], 0)
        digest = evidence_digest(rows, noisy) if self.checkpoint.folder is not None else ""
        module = copy.deepcopy(self.template)
        kept = self.checkpoint.restored(number, module, digest)
        if kept is not None:
            history = () if model is None else model.history
            return TrainedNet(
                module.to(self.device).eval(),
                number,
                (*history, tuple(Epoch(**epoch) for epoch in kept)),
            )
        learned, targets = rows, noisy
        if model is not None:
            module.load_state_dict(model.module.state_dict())
            if self.settings.top_k_filter is not None:
                chosen = in_top_k(noisy, self.proba(model, rows), self.settings.top_k_filter)
                learned, targets = rows[chosen], noisy[chosen]
        scored = None
        if held_out is not None:
            # With patience only every other one: the score is biased on rows that chose the epoch,
            # so the rest must measure the model.
            patient = self.settings.recipes[number - 1].patience is not None
            some = slice(0, None, 2) if patient else slice(None)
            scored = held_out[0][some], likelihoods_of(held_out[1][some])
        forms = targets_of(targets, self.settings.recipes[number - 1])
        # of a grid's points many may be near no number
        trained = self.learn(
            module, model, learned, forms, scored, win_back=not isinstance(noisy.classes, Grid)
        )
        self._tell_of_lost_classes(trained, rows, noisy)
        # Stored with the digest of its labels, so that a model of another draw is never loaded for
        # this one.
        self.checkpoint.trained(
            number, trained.module, [asdict(epoch) for epoch in trained.history[-1]], digest
        )
        return trained

    @property
    def permutation(self) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        """Function that permutes positions by the fit's seed, so that a repeat holds out the same
        rows of noisy labels."""
        return np.random.default_rng(self.seed).permutation

    def judging(self, model: TrainedNet, held_out: Positions) -> Positions:
        """Return the held-out rows that chose no epoch, and so can measure the model."""
        return (
            held_out
            if all(recipe.patience is None for recipe in self.settings.recipes)
            else held_out[1::2]
        )

    def learn(
        self,
        module: nn.Module,
        model: TrainedNet | None,
        rows: Positions,
        target: Any,
        held_out: tuple[Positions, Any] | None,
        win_back: bool = True,
    ) -> TrainedNet:
        """Train a module as the stage after `model`, on targets for its loss."""
        number, before = (1, ()) if model is None else (model.number + 1, model.history)
        history: list[Epoch] = []
        recipe = self.settings.recipes[number - 1]

        def told(epoch: Epoch) -> None:
            history.append(epoch)
            if self.settings.progress is not None:
                self.settings.progress(epoch)

        with seeded(self.seed, number, self.device) as generator:
            done = train_at(
                Placement(self.device, recipe.precision, self.fabric),
                module,
                self.inputs.take(torch.from_numpy(rows)),
                target,
                recipe,
                generator=generator,
                held_out=(
                    None
                    if held_out is None
                    else (self.inputs.take(torch.from_numpy(held_out[0])), held_out[1])
                ),
                progress=told,
                first=self._first(model, rows) if recipe.consistency is not None else None,
                win_back=win_back,
            )  # the fit judges its last net by the labels' unbiased losses
        for weight, first in zip(done.parameters(), self.template.parameters(), strict=True):
            weight.requires_grad_(first.requires_grad)  # an averaged net comes without gradients
        for net in rated(done):
            some = spread(len(self.inputs), sum(net.sizes), _RATED)
            net.hold(logits_of(net, self.inputs, some, recipe.precision, self.fabric))
        return TrainedNet(done, number, (*before, tuple(history)))

    def _first(self, model: TrainedNet | None, rows: Positions) -> torch.Tensor | None:
        """Return the predictions by which targets begin: of the stage before, which chose what rows
        were asked, or of a prior."""
        if model is not None:
            return torch.from_numpy(self.proba(model, rows))
        return None if self.first is None else torch.from_numpy(self.first[rows])

    def _tell_of_lost_classes(
        self, trained: TrainedNet, rows: Positions, noisy: NoisyLabels
    ) -> None:
        """Warn of classes to which the net gives no probability."""
        if not is_first() or isinstance(noisy.classes, Grid):
            return

        def look(some: Positions) -> Iterable[tuple[NoisyLabels, Floats]]:
            proba = self.proba(trained, rows[some])
            if self.columns is None:
                return [(noisy[some], proba)]
            return zip(columns_told(noisy[some]), self.columns.separated(proba), strict=True)

        warn_of_lost_classes(
            look,
            np.arange(len(rows)),
            noisy.n_classes,
            f"After stage {trained.number} the net",
            "a step was too large. Clip gradients, lower the rate, or fit again from another"
            " random_state; labels that were drawn are not drawn again.",
        )

    def prior_of(self, model: TrainedNet, rows: Positions) -> Floats:
        """Return the model's probabilities, sharpened or flattened by the temperature, as the next
        stage's prior: (m, K)."""
        found = self.proba(model, rows, self.settings.temperature)
        if self.columns is None:
            return found
        return self.columns.prior(
            dict(zip(self.columns.names, self.columns.separated(found), strict=True))
        )(np.arange(len(rows)))

    def proba(self, model: TrainedNet, rows: Positions, temperature: float = 1.0) -> Floats:
        """Predict probabilities of the classes: (m, K); of several columns side by side, (m, K_1 +
        ... + K_L)."""
        precision = self.settings.recipes[model.number - 1].precision
        logits = logits_of(model.module, self.inputs, rows, precision, self.fabric) / temperature
        return softmax(logits, () if self.columns is None else self.columns.sizes)


def softmax(logits: Tensor, sizes: Sequence[int] = ()) -> Floats:
    """Compute the probabilities (m, K) float64 of logits; those of several heads with these numbers
    of outputs apart, side by side."""
    heads = logits.split(tuple(sizes), dim=1) if sizes else (logits,)
    return np.asarray(
        torch.cat([torch.softmax(head, dim=1) for head in heads], dim=1).cpu().numpy(), np.float64
    )


def logits_of(
    module: nn.Module,
    inputs: Inputs,
    rows: Positions,
    precision: Precision = "auto",
    fabric: Any = None,
) -> Tensor:
    """Compute the net's outputs for these rows: (m, outputs) float64.

    Raises
    ------
    InvalidInput
        If a logit is not finite.
    """
    logits = predict(
        module, inputs.take(torch.from_numpy(rows)), precision=precision, fabric=fabric
    ).double()
    bad = ~torch.isfinite(logits).all(dim=1)
    if bool(bad.any()):
        raise InvalidInput(
            f"Expected finite logits, got NaN or infinity for {int(bad.sum())} of {len(rows)} rows."
            " Training has diverged: lower the rate, or clip gradients."
        )
    return logits


class SharedRun:
    """The first process's run, whose outputs every process gets; draws are noted in the fit's
    folder.

    Parameters
    ----------
    run : labeldp.custody._run.Run, or None in the other processes
    n_rows : int
    checkpoint : Checkpoint
    """

    def __init__(self, run: "Run | None", n_rows: int, checkpoint: "Checkpoint") -> None:
        self._run, self._checkpoint, self.n_rows = run, checkpoint, n_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # a failed run keeps its secret, so that the same fit can resume it
        if error is None and self._run is not None:
            self._run.settle()

    @property
    def receipt(self) -> Receipt | None:
        """The charge; None in the other processes."""
        return None if self._run is None else self._run.receipt

    def partition(self, fractions: tuple[float, ...]) -> NDArray[np.int16]:
        """Return the number of each row's part."""
        return from_first(lambda: self._here().partition(fractions))

    def privatize(
        self, rows: Positions, law: Law, prior: Any = None, stage: str = "release"
    ) -> NoisyLabels:
        """Draw these rows, each once in the run."""
        noisy = from_first(lambda: self._here().privatize(rows, law, prior, stage))
        self._checkpoint.drawn(stage, noisy)
        return noisy

    def _here(self) -> "Run":
        assert self._run is not None, "only the first process draws"
        return self._run


def targets_of(noisy: NoisyLabels, recipe: Recipe) -> Any:
    """Make the evidence for a recipe's loss: hard labels, debiasing weights, or log-likelihoods
    (also for the user's own losses)."""
    if takes_labels(recipe.loss):
        return torch.from_numpy(noisy.hard_codes())
    return debias_weights(noisy) if plain(recipe.loss) is debiased_loss else likelihoods_of(noisy)


def likelihoods_of(noisy: NoisyLabels) -> Form:
    """Make the evidence of log-likelihoods: of several columns that of a head for each."""
    return column_evidence(noisy) if isinstance(noisy.classes, LabelColumns) else evidence_of(noisy)


def require_held_out(recipes: Sequence[Recipe], n_held_out: int) -> None:
    """Refuse patience, before anything is charged, if there will be too few held-out rows to choose
    epochs by."""
    patience = next((recipe.patience for recipe in recipes if recipe.patience is not None), None)
    if patience is not None and n_held_out < MIN_VALIDATION_ROWS:
        raise InvalidInput(
            f"Expected at least {MIN_VALIDATION_ROWS} held-out rows with patience={patience}, got"
            f" {n_held_out}. Raise validation_fraction, or leave out patience."
        )


@contextlib.contextmanager
def seeded(seed: int, number: int, device: torch.device) -> Iterator[torch.Generator]:
    """Yield a generator for one step of a fit; torch's global generator, which dropout uses, is
    seeded alike and then restored."""
    # Each step has its own seed, derived from the fit's, so that a fit that resumes after a kill
    # draws the same numbers.
    derived = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(derived)
        yield torch.Generator().manual_seed(derived)


# The folder of a fit
# --------------------------------------------------------------------------------------------------


class Checkpoint:
    """The state of one fit on disk, made by `opened`; without a folder nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @property
    def _store(self) -> RunStore:
        assert self.folder is not None
        return RunStore(self.folder)

    @property
    def run_id(self) -> str:
        """The id of the run that the fit was charged for, or ""."""
        facts = from_first(lambda: self._read_json("receipt.json", run_id=str))
        return "" if facts is None else str(facts["run_id"])

    def begin(
        self,
        facts: Mapping[str, object],
        seed: int,
        module: nn.Module,
        *,
        weights_given: bool = False,
    ) -> int:
        """Record the fit, or resume the recorded one: load its initial weights into the module, and
        return its seed.

        Parameters
        ----------
        facts : mapping
            JSON-ready facts that identify the fit.
        seed : int
        module : nn.Module
            Before training.
        weights_given : bool, default=False
            Whether the user gave the initial weights; a warning then says if the stored ones
            differ.

        Raises
        ------
        InvalidInput
            If the folder holds another fit; the message names the facts in which it differs.
        """
        assert self.folder is not None
        # compared with the file's facts, in which tuples are lists, and NumPy's numbers plain ones
        wanted = json.loads(json.dumps(dict(facts), default=np.generic.item))
        kept, initial = from_first(lambda: self._begun(wanted, seed, module, weights_given))
        if initial is not None:
            _put(module, initial, f"{self.folder / 'initial.pt'}")
        return kept

    def _begun(
        self, wanted: dict[str, object], seed: int, module: nn.Module, weights_given: bool
    ) -> tuple[int, State | None]:
        assert self.folder is not None
        plan = self._read_json("plan.json", facts=dict, seed=int)
        if plan is None:
            # before the plan: a plan on disk implies weights on disk
            self._store.write("initial.pt", _torch_bytes(_on_cpu(module)))
            self._store.write(
                "plan.json",
                json.dumps({"format": _FORMAT, "facts": wanted, "seed": seed}, indent=1).encode(),
            )
            return seed, None
        if plan.get("format") != _FORMAT:
            raise InvalidInput(
                f"Expected a plan.json of format {_FORMAT} in {self.folder}, got another."
                " Nothing was drawn. Take another folder: labels that were drawn are kept beside"
                " the ledger."
            )
        found = list(_validate.differences(plan["facts"], wanted))
        if found:
            raise InvalidInput(
                f"Expected in {self.folder} the state of this fit, got that of one that differs in"
                f" {_validate.told(found)}. Nothing was drawn and nothing was changed. Give what"
                " that fit was given, or another folder: labels that were drawn are kept beside"
                " the ledger."
            )
        initial = self._read_torch("initial.pt", _RESTORE)
        if initial is None:
            raise InvalidInput(
                f"Expected the first weights in {self.folder / 'initial.pt'}, got no file."
                f" {_RESTORE}"
            )
        given = _on_cpu(module)
        same = given.keys() == initial.keys() and all(
            torch.equal(w, initial[name]) for name, w in given.items()
        )
        # a script that makes its net has other random weights in each process
        if weights_given and not same:
            warnings.warn(
                f"The net given has other weights than the fit in {self.folder} began with, and"
                " that fit goes on with its own. Give a function that makes the net if its first"
                " weights are random; another folder if it is these that you mean.",
                LabelDPWarning,
                stacklevel=2,
            )
        return int(plan["seed"]), initial

    def charged(self, receipt: Receipt) -> None:
        """Store the receipt, by which a resumed fit finds its run and is not charged again."""
        if (
            self.folder is not None
            and is_first()
            and self._read_json("receipt.json", run_id=str) is None
        ):
            self._store.write("receipt.json", json.dumps(receipt.to_dict(), indent=1).encode())

    def drawn(self, stage: str, noisy: NoisyLabels) -> None:
        """Note that a stage's labels were drawn, with digests of its prior's decisions and of the
        outputs.

        Raises
        ------
        InvalidInput
            If other labels were noted before.
        """
        if self.folder is None or not is_first():
            return
        side = {
            f"{i}.{name}": values
            for i, block in enumerate(noisy.blocks)
            for name, values in block.side.items()
        }
        facts = {
            "rows": len(noisy),
            "laws": [block.law.to_dict() for block in noisy.blocks],
            "prior": array_digest(side) if side else "",
            "outputs": evidence_digest(None, noisy),
        }
        kept = self._read_json(f"drawn-{stage}.json", outputs=str)
        if kept is not None and kept["outputs"] != facts["outputs"]:
            raise self._foreign(f"drawn-{stage}.json")
        if kept is None:
            self._store.write(f"drawn-{stage}.json", json.dumps(facts, indent=1).encode())

    def trained(
        self, number: int, module: nn.Module, history: list[dict[str, Any]], evidence: str
    ) -> None:
        """Store a stage's model; the stage is then not trained again."""
        if self.folder is not None and is_first():
            state = {"weights": _on_cpu(module), "history": history, "evidence": evidence}
            self._store.write(f"model-{number}.pt", _torch_bytes(state))

    def restored(
        self, number: int, module: nn.Module, evidence: str
    ) -> list[dict[str, Any]] | None:
        """Load the stored weights of a stage into a module and return its history; None if the
        stage is not trained yet.

        Raises
        ------
        InvalidInput
            If that model has learned from other noisy labels, or cannot be read.
        """
        kept = (
            None
            if self.folder is None
            else from_first(lambda: self._read_torch(f"model-{number}.pt", _TRAIN_AGAIN))
        )
        if kept is None:
            return None
        if not kept.keys() >= {"weights", "history", "evidence"}:
            raise InvalidInput(
                f"Expected the model of a stage in {self.folder}/model-{number}.pt, got something"
                f" else. {_TRAIN_AGAIN}"
            )
        if kept["evidence"] != evidence:
            raise self._foreign(f"model-{number}.pt")
        _put(module, kept["weights"], f"{self.folder}/model-{number}.pt")
        return list(kept["history"])

    def _foreign(self, name: str) -> InvalidInput:
        return InvalidInput(
            f"Expected {name} in {self.folder} to come from the labels that this fit has drawn, got"
            " that of other ones. Nothing was changed. Give the folder and the ledger that belong"
            " together, or another folder."
        )

    def _read_json(self, name: str, **parts: type) -> dict[str, Any] | None:
        """Read a JSON file that must hold at least these parts, of these types; None if there is no
        file."""
        data = None if self.folder is None else self._store.read(name)
        if data is None:
            return None
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(
            isinstance(found.get(part), kind) for part, kind in parts.items()
        ):
            raise InvalidInput(
                f"Expected the state of a fit in {self._store.folder / name}, got something else."
                f" {_RESTORE}"
            )
        return found

    def _read_torch(self, name: str, advice: str) -> Any:
        data = self._store.read(name)
        try:
            # weights_only: a pickle runs code, and somebody else may have written to the folder.
            if data is None:
                return None
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            found.keys()  # of what is no table an error
            return found
        except Exception as error:
            where = self._store.folder / name
            raise InvalidInput(
                f"Expected weights in {where}, got what cannot be read ({type(error).__name__})."
                f" {advice}"
            ) from None


@contextlib.contextmanager
def opened(folder: str | Path | None) -> Iterator[Checkpoint]:
    """Open and lock a fit's folder for this training; remove unfinished files of killed ones.

    Parameters
    ----------
    folder : str, Path or None
        Created if it does not exist. None: nothing is stored.
    """
    path = None if folder is None else Path(path_text(folder))
    if path is None:
        yield Checkpoint(None)
        return
    with contextlib.ExitStack() as held:
        from_first(lambda: _take(path, held))
        yield Checkpoint(path)


def _take(path: Path, held: contextlib.ExitStack) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InvalidInput(
            f"Expected folder= where files can be made, got {path} ({type(error).__name__})."
            " Nothing was drawn. Name another."
        ) from None
    held.callback(os.close, handle)  # closing also releases the lock
    # Checked on the open handle, not the path, which somebody could replace by another folder in
    # between.
    facts = os.fstat(handle)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise InvalidInput(
            "Expected folder= that is your own and that nobody else can write to, since a fit goes"
            f" on from what is in it; got {path}. Nothing was drawn. Name another, or take the"
            " others' rights away: chmod go-w."
        )
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInput(
            f"Expected a folder that no other fit uses now, got {path}. Wait for the other, or use"
            " another folder."
        ) from None
    # after the lock is held, since another fit may be writing one before
    for part in path.glob(".*.part"):
        part.unlink()


def evidence_digest(rows: Positions | None, noisy: NoisyLabels) -> str:
    """Compute the SHA-256 of noisy labels: outputs, sides, rows, ids and receipts."""
    facts = [(block.law.to_dict(), block.receipt.run_id, block.stage) for block in noisy.blocks]
    arrays: dict[str, Any] = {} if rows is None else {"rows": rows}
    for i, block in enumerate(noisy.blocks):
        arrays |= {f"{i}/output": block.outputs, f"{i}/at": block.rows} | {
            f"{i}/{name}": values for name, values in block.side.items()
        }
    return digest(
        {
            "blocks": facts,
            "classes": list(map(repr, noisy.classes)),
            "arrays": array_digest(arrays),
            "ids": ids_digest(noisy.ids),
        }
    )


def ids_digest(ids: ArrayLike | None) -> str:
    """Compute the SHA-256 of ids in their order; "" for none."""
    if ids is None:
        return ""
    array = np.asarray(ids)
    # no bytes of times can be read
    return array_digest({"ids": array.astype(np.str_) if array.dtype.kind in "OMm" else array})


def _put(module: nn.Module, state: State, where: str) -> None:
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError):
        raise InvalidInput(
            f"Expected weights of this {type(module).__name__} in {where}, got those of another"
            " net."
        ) from None


def _on_cpu(module: nn.Module) -> State:
    return {name: w.detach().cpu() for name, w in module.state_dict().items()}


def _torch_bytes(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


# Facts that identify a fit
# --------------------------------------------------------------------------------------------------


def facts_of_training(
    model: Any, inputs: Callable[[], str], recipes: tuple[Recipe, ...], template: nn.Module
) -> dict[str, object]:
    """Collect the facts of inputs, net and training that identify a fit.

    Parameters
    ----------
    model : TorchClassifier
    inputs : function
        Returns the inputs' name.
    recipes : tuple of Recipe
    template : nn.Module
        Before training.
    """
    seed, told = model.random_state, [described(recipe) for recipe in recipes]
    return {
        "inputs": inputs(),
        "module": architecture(template),
        "maker": None if isinstance(model.module, nn.Module) else described(model.module),
        "recipe": told[0] if all(each == told[0] for each in told) else told,
        "prior_temperature": Prior.of(model.prior).temperature,
        "top_k_filter": Prior.of(model.prior).top_k,
        "validation_fraction": model.validation_fraction,
        "random_state": (
            None
            if seed is None
            else int(seed)
            if isinstance(seed, int | np.integer)
            else type(seed).__name__
        ),
    }


def weights_given(model: Any) -> bool:
    """Return whether the user gave the initial weights; otherwise they follow from a seed or from a
    function."""
    return isinstance(model.module, nn.Module) and not any(
        is_lazy(weight) for weight in model.module.parameters()
    )


def facts_of_labels(plan: FitPlan) -> dict[str, object]:
    """Collect the facts of the charge and the draws that identify a fit."""
    labels, rows = plan.labels, plan.labels.rows.given
    return {
        "epsilon": plan.settings.epsilon,
        # Digests, since these may be long or name people. All of them are public, so a digest
        # reveals no label.
        "classes": digest({"classes": list(map(repr, plan.classes))}),
        "dataset": labels.dataset,
        "column": labels.column,
        "max_rows_per_unit": labels.account.max_rows_per_unit,
        "ids": ids_digest(rows.ids),
        "unit": ids_digest(rows.unit),
        "names": [rows.id_name, rows.unit_name],
        "prior": plan.prior_digest,
        "seeded_noise": described(labels.account.noise),
        **plan.to_dict(),
    }


def seed_of(random_state: Any) -> int:
    """Return the seed of a fit's training: `random_state`, a draw from it, or a number from the
    system. The noise never depends on it."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return _validate.integer(random_state=random_state, low=0)
    if hasattr(random_state, "randint"):
        return int(random_state.randint(np.iinfo(np.int32).max))
    raise InvalidInput(
        "Expected random_state as a number >= 0, a RandomState or None, got"
        f" {type(random_state).__name__}."
    )


# Descriptions of settings and nets
# --------------------------------------------------------------------------------------------------


def described(value: object) -> object:
    """Describe a setting as JSON-ready data that is the same in another process.

    Functions are described by name; the user's also by their code, with its constants and the
    functions that it names or closes over. Objects are described by class and by the code of their
    `__call__`. Numbers and texts are described only in labeldp's own values and in
    `functools.partial` of its functions.

    Parameters
    ----------
    value : object
        Part of a recipe.
    """
    return _described(value, (), ours=True)


def architecture(module: nn.Module) -> dict[str, object]:
    """Describe a net before training: its layers, the shapes of its weights, and the code of the
    user's `forward` methods; no weight."""
    kinds = {type(part) for part in module.modules()}
    own = {
        _name_of(kind): _described(kind.forward, (), ours=False)
        for kind in kinds
        if not _is_of(kind, _KNOWN)
    }
    layers = []
    # a user's layer may show anything as its settings, also labels
    for name, part in module.named_modules():
        layers.append(
            [name, _name_of(type(part)), part.extra_repr() if _is_of(type(part), _KNOWN) else ""]
        )
    return {
        "is": type(module).__qualname__,
        "layers": layers,
        "weights": [[name, list(w.shape), str(w.dtype)] for name, w in module.state_dict().items()],
        "forward": own,
    }


def _described(value: object, above: tuple[int, ...], *, ours: bool) -> object:
    """Describe a part of a setting.

    `above` holds the ids of the values around it, so that a cycle ends. Only with `ours`, for a
    setting of labeldp's, which is public, is the value itself described.
    """
    if isinstance(value, np.bool_ | np.integer | np.floating) and ours:
        value = value.item()
    if ours and isinstance(value, _validate.PLAIN):
        return repr(value) if isinstance(value, float) else value
    if id(value) in above or len(above) > _DEEP:
        return {"is": _name_of(type(value))}
    within = (*above, id(value))
    if isinstance(value, functools.partial):
        return _of_partial(value, within)
    if isinstance(value, type):
        return {"class": _name_of(value)}
    if isinstance(
        value, types.FunctionType | types.MethodType | types.BuiltinFunctionType
    ) or hasattr(value, "cache_parameters"):
        return _of_function(value, within)
    if ours and type(value) is tuple and len(value) <= _MANY:
        return [_described(each, within, ours=True) for each in value]
    return _of_object(value, within)


def _of_partial(value: "functools.partial[Any]", within: tuple[int, ...]) -> object:
    """Describe a partial by its function, and by its arguments if that function is labeldp's
    own."""
    told: dict[str, object] = {"partial": _described(value.func, within, ours=False)}
    if _is_of(value.func, _OURS):
        told["args"] = [_described(each, within, ours=True) for each in value.args]
        told["keywords"] = {
            name: _described(each, within, ours=True) for name, each in value.keywords.items()
        }
    return told


def _of_object(value: object, within: tuple[int, ...]) -> object:
    """Describe an object by its class and its `__call__`; a settings object of labeldp's by its
    fields, too."""
    kind = type(value)
    told: dict[str, object] = {"is": _name_of(kind)}
    if _is_of(kind, _OURS) and is_dataclass(value):
        return told | {
            field.name: _described(getattr(value, field.name), within, ours=True)
            for field in fields(value)
        }
    call = getattr(kind, "__call__", None)  # noqa: B004 (what it is, not whether there is one)
    if isinstance(call, types.FunctionType) and not _is_of(kind, _KNOWN):
        told["call"] = _described(call, within, ours=False)
    return told


def _of_function(value: Any, within: tuple[int, ...]) -> object:
    """Describe a function or method by its code and the functions that it closes over or names; one
    of labeldp's or torch's by name."""
    # Other values in its closure are described by type alone, and other globals not at all: a list
    # in a closure may be the raw labels, and a digest of it would confirm a guess.
    bound = getattr(value, "__self__", None)
    told = (
        {}
        if bound is None or isinstance(bound, types.ModuleType)
        else {"self": _described(bound, within, ours=False)}
    )
    # of a method; of a cache
    function = getattr(value, "__func__", getattr(value, "__wrapped__", value))
    code = getattr(function, "__code__", None)
    if code is None or _is_of(function, _KNOWN):
        return {
            "function": (
                f"{getattr(function, '__module__', '')}."
                f"{getattr(function, '__qualname__', type(function).__qualname__)}"
            ),
            **told,
        }
    cells = zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=True)
    named = ((name, function.__globals__.get(name)) for name in sorted(_names(code)))
    return {
        "function": f"{function.__module__}.{code.co_qualname}",
        "code": digest({"code": _of_code(code)}),
        "closure": {name: _described(each, within, ours=False) for name, each in cells},
        "globals": {
            name: _described(each, within, ours=False)
            for name, each in named
            if isinstance(each, types.FunctionType | functools.partial)
        },
        **told,
    }


def _of_code(code: types.CodeType) -> list[object]:
    """Return instructions, names and constants, with those of inner functions."""
    constants = [
        _of_code(each) if isinstance(each, types.CodeType) else _constant(each)
        for each in code.co_consts
    ]
    # Without line numbers and file name, which change with every edit elsewhere in the file.
    return [code.co_code.hex(), list(code.co_names), list(code.co_freevars), constants]


def _constant(constant: object) -> str:
    """Return a constant as text; a set with its members sorted, since their order differs between
    processes."""
    if isinstance(constant, frozenset):
        return f"frozenset({sorted(map(_constant, constant))})"
    return (
        f"({', '.join(map(_constant, constant))},)"
        if isinstance(constant, tuple)
        else repr(constant)
    )


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(
        *(_names(each) for each in code.co_consts if isinstance(each, types.CodeType))
    )


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell, of a variable that is not assigned yet
        return None


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_of(value: Any, packages: tuple[str, ...]) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] in packages
