# SPDX-License-Identifier: Apache-2.0
"""The folder of a fit: what was asked for, and what came of each step, so that a fit that was killed goes on where it was.

    plan.json           public facts that make it the same fit, and its seed, from which every step's random numbers follow
    initial.pt          weights before training
    receipt.json        the charge
    drawn-STAGE.json    rows, law, and digests of what a stage's prior decided and of what was drawn; outputs are in the run's own store
    model-N.pt          weights after stage N, its history, and the digest of the noisy labels that it learned from

The files are a `RunStore`'s: each appears whole or not at all, and is on disk when its step is done. Nothing here follows from raw labels,
as long as the net that was given does not: of the user's functions and objects their code and types are told, never what they hold
(`labeldp.deep._describe`).
"""

import contextlib
import fcntl
import io
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from labeldp import _validate
from labeldp._hash import array_digest, digest
from labeldp.deep._describe import architecture, described, differences
from labeldp.deep._loop import Recipe, from_first, is_first
from labeldp.errors import InvalidInput, LabelDPWarning
from labeldp.evidence import NoisyLabels
from labeldp.ledger._run_store import RunStore
from labeldp.protocol._fit import FitPlan, Rows
from labeldp.receipt import Receipt

State = Mapping[str, Tensor]

_TOLD = 4  # differences in a message
_RESTORE = "Restore the file, or use another folder: labels that were drawn are kept beside the ledger."
_TRAIN_AGAIN = "Delete the file: the stage is trained again, and no label is drawn again."
_FORMAT = 2  # of plan.json; the first one told what functions and objects held


class Checkpoint:
    """The state of one fit on disk; without a folder, nothing is kept. Made by `opened`."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @property
    def _store(self) -> RunStore:
        assert self.folder is not None
        return RunStore(self.folder)

    @property
    def run_id(self) -> str:
        """Of the run that the fit was charged for, or ""."""
        facts = from_first(lambda: self._read_json("receipt.json", run_id=str))
        return "" if facts is None else str(facts["run_id"])

    def begin(self, facts: Mapping[str, object], seed: int, module: nn.Module, *, weights_given: bool = False) -> int:
        """Write what is asked for, or go on with what is there: puts the kept first weights into the module, and returns the kept seed.

        Parameters
        ----------
        facts : mapping
            JSON-ready: what makes a fit the same fit.
        seed : int
        module : nn.Module
            Before training.
        weights_given : bool
            Whether somebody gave the first weights, so that it is worth a warning if the kept ones are others.

        Raises
        ------
        InvalidInput
            If the folder holds another fit: says in which facts it differs.
        """
        if self.folder is None:
            return seed
        wanted = json.loads(json.dumps(dict(facts)))
        kept, initial = from_first(lambda: self._begun(wanted, seed, module, weights_given))
        if initial is not None:
            _put(module, initial, f"{self.folder / 'initial.pt'}")
        return kept

    def _begun(self, wanted: dict[str, object], seed: int, module: nn.Module, weights_given: bool) -> tuple[int, State | None]:
        assert self.folder is not None
        plan = self._read_json("plan.json", facts=dict, seed=int)
        if plan is None:
            self._store.write("initial.pt", _torch_bytes(_on_cpu(module)))
            self._store.write("plan.json", json.dumps({"format": _FORMAT, "facts": wanted, "seed": seed}, indent=1).encode())
            return seed, None
        if plan.get("format") != _FORMAT:
            raise InvalidInput(
                f"Expected a plan.json of format {_FORMAT} in {self.folder}, got another. Before format 2 it told what a net's maker and a "
                "recipe's functions held, raw labels included: delete the folder if they held any. Nothing was drawn. Take another folder: "
                "labels that were drawn are kept beside the ledger."
            )
        found = list(differences(plan["facts"], wanted))
        if found:
            raise InvalidInput(
                f"Expected in {self.folder} the state of this fit, got that of one that differs in {_listed(found)}. Nothing was drawn and "
                f"nothing was changed. Give what that fit was given, or another folder: labels that were drawn are kept beside the "
                "ledger."
            )
        initial = self._read_torch("initial.pt", _RESTORE)
        if initial is None:
            raise InvalidInput(f"Expected the first weights in {self.folder / 'initial.pt'}, got no file. {_RESTORE}")
        if weights_given and _differ(initial, module):  # a script that makes its net by itself has other random weights each time
            warnings.warn(
                f"The net given has other weights than the fit in {self.folder} began with, and that fit goes on with its own. "
                "Give a function that makes the net if its first weights are random; another folder if it is these that you mean.",
                LabelDPWarning,
                stacklevel=2,
            )
        return int(plan["seed"]), initial

    def charged(self, receipt: Receipt) -> None:
        """Keep the receipt."""
        if self.folder is not None and is_first() and self._read_json("receipt.json", run_id=str) is None:
            self._store.write("receipt.json", json.dumps(receipt.to_dict(), indent=1).encode())

    def drawn(self, stage: str, noisy: NoisyLabels) -> None:
        """Note that a stage's labels have been drawn, and what its prior decided.

        Raises
        ------
        InvalidInput
            If other labels were noted before.
        """
        if self.folder is None or not is_first():
            return
        side = {f"{i}.{name}": values for i, block in enumerate(noisy.blocks) for name, values in block.side.items()}
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

    def trained(self, number: int, module: nn.Module, history: list[dict[str, Any]], evidence: str) -> None:
        """Keep the model of a stage."""
        if self.folder is not None and is_first():
            state = {"weights": _on_cpu(module), "history": history, "evidence": evidence}
            self._store.write(f"model-{number}.pt", _torch_bytes(state))

    def restored(self, number: int, module: nn.Module, evidence: str) -> list[dict[str, Any]] | None:
        """Put the kept weights of a stage into a module; its history, or None if the stage is still to be trained.

        Raises
        ------
        InvalidInput
            If that model has learned from other noisy labels, or cannot be read.
        """
        kept = None if self.folder is None else from_first(lambda: self._read_torch(f"model-{number}.pt", _TRAIN_AGAIN))
        if kept is None:
            return None
        if not isinstance(kept, dict) or not kept.keys() >= {"weights", "history", "evidence"}:
            raise InvalidInput(f"Expected the model of a stage in {self.folder}/model-{number}.pt, got something else. {_TRAIN_AGAIN}")
        if kept["evidence"] != evidence:
            raise self._foreign(f"model-{number}.pt")
        _put(module, kept["weights"], f"{self.folder}/model-{number}.pt")
        return list(kept["history"])

    def _foreign(self, name: str) -> InvalidInput:
        return InvalidInput(
            f"Expected {name} in {self.folder} to come from the labels that this fit has drawn, got that of other ones. "
            "Nothing was changed. Give the folder and the ledger that belong together, or another folder."
        )

    def _read_json(self, name: str, **parts: type) -> dict[str, Any] | None:
        """What a file holds, with at least these parts of these types; None where there is no file."""
        data = None if self.folder is None else self._store.read(name)
        if data is None:
            return None
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(found.get(part), kind) for part, kind in parts.items()):
            raise InvalidInput(f"Expected the state of a fit in {self._store.folder / name}, got something else. {_RESTORE}")
        return found

    def _read_torch(self, name: str, advice: str) -> Any:
        data = self._store.read(name)
        try:
            return None if data is None else torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:
            where = self._store.folder / name
            raise InvalidInput(f"Expected weights in {where}, got what cannot be read ({type(error).__name__}). {advice}") from None


@contextlib.contextmanager
def opened(folder: str | Path | None) -> Iterator[Checkpoint]:
    """The folder's state, for this process (and the others of its training) alone; half files of killed ones are removed.

    Parameters
    ----------
    folder : str, Path or None
        Made if it does not exist. None: nothing is kept.
    """
    path = None if folder is None else Path(folder)
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
            f"Expected folder= where files can be made, got {path} ({type(error).__name__}). Nothing was drawn. Name another."
        ) from None
    held.callback(os.close, handle)
    facts = os.fstat(handle)
    if facts.st_uid != os.geteuid() or facts.st_mode & 0o022:
        raise InvalidInput(
            f"Expected folder= that is your own and that nobody else can write to, since a fit goes on from what is in it; got {path}. "
            "Nothing was drawn. Name another, or take the others' rights away: chmod go-w."
        )
    _lock(handle, path)
    for part in path.glob(".*.part"):
        part.unlink()


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInput(
            f"Expected a folder that no other fit uses now, got {path}. Wait for the other, or use another folder."
        ) from None


def evidence_digest(rows: Rows | None, noisy: NoisyLabels) -> str:
    """SHA-256 of noisy labels: outputs, sides, rows, ids and receipts."""
    facts = [(block.law.to_dict(), block.receipt.run_id, block.stage) for block in noisy.blocks]
    arrays: dict[str, Any] = {} if rows is None else {"rows": rows}
    for i, block in enumerate(noisy.blocks):
        arrays |= {f"{i}/output": block.outputs, f"{i}/at": block.rows} | {f"{i}/{name}": values for name, values in block.side.items()}
    return digest(
        {"blocks": facts, "classes": list(map(repr, noisy.classes)), "arrays": array_digest(arrays), "ids": ids_digest(noisy.ids)}
    )


def ids_digest(ids: ArrayLike | None) -> str:
    """SHA-256 of ids in their order; "" for none."""
    if ids is None:
        return ""
    array = np.asarray(ids)
    return array_digest({"ids": array.astype(np.str_) if array.dtype.kind == "O" else array})


def _put(module: nn.Module, state: State, where: str) -> None:
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError):
        raise InvalidInput(f"Expected weights of this {type(module).__name__} in {where}, got those of another net.") from None


def _on_cpu(module: nn.Module) -> State:
    return {name: w.detach().cpu() for name, w in module.state_dict().items()}


def _differ(kept: State, module: nn.Module) -> bool:
    state = _on_cpu(module)
    return kept.keys() != state.keys() or not all(torch.equal(w, kept[name]) for name, w in state.items())


def _torch_bytes(thing: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def _listed(found: list[str]) -> str:
    more = len(found) - _TOLD
    return "; ".join(found[:_TOLD]) + (f"; and {more} more" if more > 0 else "")


def facts_of_training(model: Any, inputs: Callable[[], str], recipes: tuple[Recipe, ...], template: nn.Module) -> dict[str, object]:
    """Of inputs, net and training.

    Parameters
    ----------
    model : TorchClassifier
    inputs : function
        Gives their name.
    recipes : tuple of Recipe
    template : nn.Module
        Before training.
    """
    seed = model.random_state
    return {
        "inputs": inputs(),
        "module": architecture(template),
        "maker": None if isinstance(model.module, nn.Module) else described(model.module),
        "recipe": _alike([described(recipe) for recipe in recipes]),
        "warm_start": model.warm_start,
        "prior_temperature": model.prior_temperature,
        "top_k_filter": model.top_k_filter,
        "validation_fraction": model.validation_fraction,
        "random_state": None if seed is None else int(seed) if isinstance(seed, int | np.integer) else type(seed).__name__,
    }


def weights_given(model: Any) -> bool:
    """Whether somebody gave the first weights; else they follow from a seed, or from what a function does."""
    return isinstance(model.module, nn.Module) and not any(is_lazy(weight) for weight in model.module.parameters())


def facts_of_labels(plan: FitPlan) -> dict[str, object]:
    """Of what is drawn.

    Parameters
    ----------
    plan : FitPlan
    """
    settings, rows = plan.settings, plan.rows
    return {
        "epsilon": settings.epsilon,
        "classes": digest({"classes": list(map(repr, plan.classes))}),
        "dataset": settings.dataset,
        "column": settings.column,
        "max_rows_per_unit": settings.max_rows_per_unit,
        "ids": ids_digest(rows.ids),
        "unit": ids_digest(rows.unit),
        "names": [rows.id_name, rows.unit_name],
        "prior": plan.prior_digest,
        "seeded_noise": described(settings.noise),
        **plan.to_dict(),
    }


def _alike(recipes: list[object]) -> object:
    """One recipe, where all stages have the same."""
    return recipes[0] if all(each == recipes[0] for each in recipes) else recipes


def seed_of(random_state: Any) -> int:
    """The number that a fit's random numbers follow from: as given, drawn from what was given, or from the system."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return _validate.integer(random_state=random_state, low=0)
    if hasattr(random_state, "randint"):
        return int(random_state.randint(np.iinfo(np.int32).max))
    raise InvalidInput(f"Expected random_state as a number >= 0, a RandomState or None, got {type(random_state).__name__}.")
