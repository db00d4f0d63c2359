# SPDX-License-Identifier: Apache-2.0
"""A trained model as a folder: model.json, and what it learnt in a format that runs no code.

model.skops is a pipeline of scikit-learn, from what was read of a row to probabilities. weights.pt is the state_dict of a net, which
model.json names with its parameters; steps.skops, if there is one, makes the net's numbers of columns.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labeldp._files import give_usual_rights, own_folder, sync, write_new
from labeldp._hash import digest
from labeldp.app._model_check import check_archive, check_estimator, probabilities, untrusted
from labeldp.deep import _named as named
from labeldp.errors import InvalidInput, LabelDPError, ReleaseError
from labeldp.inputs import Inputs, inputs_from_dict
from labeldp.learn._corrections import Model
from labeldp.tables.output._staging import workplace

FORMAT = 2
MODEL, WEIGHTS, STEPS, FACTS = "model.skops", "weights.pt", "steps.skops", "model.json"
_DIGESTED = {FACTS: "facts", MODEL: "model", WEIGHTS: "model", STEPS: "steps"}
SAFE = frozenset(
    {
        # what scikit-learn's histogram gradient boosting and imputer are made of, beyond what skops trusts; `model_check` looks into it
        "functools.partial",
        "numpy.dtype",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.utils.validation.check_array",
    }
)


class Predicts(Protocol):
    """Gives the probabilities of class codes."""

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(n, K)."""
        ...


@dataclass(frozen=True, eq=False)
class NetModel:
    """A net as a model of the true label, after the steps that make its numbers, if there are any."""

    module: Any
    steps: Any = None

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the true label: (n, K)."""
        return named.probabilities(self.module, X if self.steps is None else named.as_floats(self.steps.transform(X)))


@dataclass(frozen=True)
class StoredModel:
    """A model that was read back.

    Attributes
    ----------
    model : Predicts
    inputs : Inputs
        How it reads a row.
    classes : tuple
        Class values by code.
    facts : mapping
        model.json.
    """

    model: Predicts
    inputs: Inputs
    classes: tuple[object, ...]
    facts: Mapping[str, Any]

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the true label for n rows: (n, K); a file that was changed is an error in words."""
        return probabilities(self.model, X, len(self.classes))


def check_free(out: Path) -> None:
    """The folder is not there yet, or is empty; a link, wherever it leads, cannot be replaced in one step."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ReleaseError(f"Expected a new or empty folder for the model, got {out}. Remove it, or choose another name.")


def save_model(out: Path, model: Any, facts: Mapping[str, object]) -> None:
    """Write the folder, whole or not at all: an estimator; or the net that the facts name, and the steps before it or None."""
    check_free(out)
    files = _bytes_of(model, facts)
    said = {"format": FORMAT, "kind": "model"} | dict(facts)
    text = json.dumps(said | {"digests": _digests(said, files)}, indent=2, ensure_ascii=False, allow_nan=False)
    with workplace(out, "model", MODEL, WEIGHTS, STEPS, FACTS) as folder:
        made = folder / "model"
        own_folder(made)
        for name, data in (*files.items(), (FACTS, text.encode())):
            write_new(made / name, data)
            give_usual_rights(made / name)
        give_usual_rights(made)
        sync(made)
        os.replace(made, out)
        sync(out.parent)


def _bytes_of(model: Any, facts: Mapping[str, object]) -> dict[str, bytes]:
    from skops import io

    if "net" not in facts:
        return {MODEL: bytes(io.dumps(model))}
    net, steps = model if isinstance(model, tuple) else (model, None)
    return {WEIGHTS: named.weights_of(net)} | ({} if steps is None else {STEPS: bytes(io.dumps(steps))})


def _digests(facts: Mapping[str, object], files: Mapping[str, bytes]) -> dict[str, str]:
    """What finds accidents: of the facts, and of each file."""
    found = {_DIGESTED[name]: hashlib.sha256(raw).hexdigest() for name, raw in files.items()}
    return {name: f"sha256:{each}" for name, each in ({"facts": digest(facts)} | found).items()}


def _check_digests(facts: Mapping[str, Any], files: Mapping[str, bytes], folder: Path) -> None:
    """Refuse facts or files that are not those that were written together."""
    if "digests" not in facts:
        return
    said = facts["digests"] if isinstance(facts["digests"], Mapping) else {}
    found = _digests({name: fact for name, fact in facts.items() if name != "digests"}, files)
    for file, name in _DIGESTED.items():
        if said.get(name) != found.get(name) and (file in files or file not in (MODEL, WEIGHTS)):
            raise InvalidInput(
                f"Expected {folder / file} as it was written with the model, got one that was changed: classes, columns or numbers may "
                "stand for others. Restore the folder or train again; give predictions other names in their table."
            )


def files_of_model(folder: Path) -> list[Path]:
    """The files of a model's folder."""
    if "net" not in _facts(folder):
        return [folder / FACTS, folder / MODEL]
    return [folder / FACTS, folder / WEIGHTS, *([folder / STEPS] if (folder / STEPS).exists() else [])]


def load_model(folder: Path, trust: Collection[str] = (), device: str = "cpu") -> StoredModel:
    """Read a folder that `save_model` wrote.

    Parameters
    ----------
    trust : collection of str
        Types that the file may build although neither skops nor labeldp knows them.
    device : str
        Where a net is put; "auto" is the GPU if there is one.

    Raises
    ------
    InvalidInput
        It is no model's folder, one of its files was changed, or its file wants to build types that are not trusted: they are listed,
        nothing is built.
    """
    facts = _facts(folder)
    try:
        files = {path.name: path.read_bytes() for path in files_of_model(folder)[1:]}
    except OSError as error:
        raise ReleaseError(f"Expected a model's file, got {error.filename} ({error.strerror}).") from None
    _check_digests(facts, files, folder)
    try:
        inputs, classes = inputs_from_dict(facts["features"]), tuple(facts["classes"])
        made = _net(facts, files, folder, trust, device) if "net" in facts else _estimator(facts, files[MODEL], folder / MODEL, trust)
        return StoredModel(made, inputs, classes, facts)
    except LabelDPError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise InvalidInput(f"Expected the facts of a model in {folder / FACTS}, got others. The file is damaged or was changed.") from None


def _net(facts: Mapping[str, Any], files: Mapping[str, bytes], folder: Path, trust: Collection[str], device: str) -> NetModel:
    steps = read_estimator(files[STEPS], str(folder / STEPS), trust) if STEPS in files else None
    net = named.restored(facts["net"]["name"], facts["net"]["parameters"], files[WEIGHTS], str(folder / WEIGHTS))
    return NetModel(net.to(named.device_of(device)), steps)


def _estimator(facts: Mapping[str, Any], raw: bytes, path: Path, trust: Collection[str]) -> Model:
    channel, n_classes = facts.get("channel"), len(facts["classes"])
    known = None if channel is None else (float(channel[0]), float(channel[1]))
    made = Model(read_estimator(raw, str(path), trust), n_classes, known)
    if drawn := facts.get("drawn"):  # towards the class frequencies
        made = replace(made, share=float(_shares([drawn["share"]], 1)[0]), frequencies=_shares(drawn["frequencies"], n_classes))
    return made


def _shares(values: Any, count: int) -> NDArray[np.float64]:
    found = np.asarray(values, np.float64)
    if found.shape != (count,) or not np.all((found >= 0) & (found <= 1)):
        raise ValueError("shares")
    return found


def read_estimator(raw: bytes, name: str, trust: Collection[str] = ()) -> Any:
    """The estimator in a file of skops; `name` is the file's, for messages. See `load_model`."""
    from skops import io

    try:
        check_archive(raw)
        unknown = sorted(set(io.get_untrusted_types(data=raw)) - SAFE - set(trust))
        made = None if unknown else io.loads(raw, trusted=sorted({*SAFE, *trust}))
    except Exception:
        raise InvalidInput(f"Expected a model in the format of skops, got something else in {name}.") from None
    if unknown:
        raise untrusted(unknown)
    return check_estimator(made, name, trust)


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except OSError as error:
        raise ReleaseError(f"Expected the folder of a model, got {folder} ({error.strerror}: {FACTS}).") from None
    except ValueError:
        facts = None
    if not isinstance(facts, dict) or facts.get("kind") != "model" or facts.get("format") not in (1, FORMAT):
        raise InvalidInput(f"Expected a model of format {FORMAT}, got something else in {folder / FACTS}.")
    if facts["format"] != FORMAT:
        raise InvalidInput(
            f"Expected a model of format {FORMAT}, got one of an earlier version in {folder}. Train again: with ids, the same rows cost "
            "nothing."
        )
    return facts
