# SPDX-License-Identifier: Apache-2.0
"""A trained model as a folder: model.json, and what it learnt in a format that runs no code.

model.skops is an estimator of scikit-learn. weights.pt is the state_dict of a net, which model.json names with its parameters.
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
from labeldp.app.model_check import check_archive, check_estimator, probabilities, untrusted
from labeldp.deep import named
from labeldp.errors import InvalidInput, LabelDPError, ReleaseError
from labeldp.learn.model import Model
from labeldp.tables.inputs import Inputs, inputs_from_dict
from labeldp.tables.publish import workplace

FORMAT = 1
MODEL, WEIGHTS, FACTS = "model.skops", "weights.pt", "model.json"
SAFE = frozenset(
    {
        # what scikit-learn's histogram gradient boosting is made of, beyond what skops trusts by itself; `model_check` looks into it
        "functools.partial",
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
    """A net as a model of the true label."""

    module: Any

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of the true label: (n, K)."""
        return named.probabilities(self.module, X)


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
    """Write the folder, whole or not at all: an estimator, or the net that the facts name."""
    check_free(out)
    raw = _bytes_of(model, facts)
    said = {"format": FORMAT, "kind": "model"} | dict(facts)
    text = json.dumps(said | {"digests": _digests(said, raw)}, indent=2, ensure_ascii=False, allow_nan=False)
    with workplace(out, "model", MODEL, WEIGHTS, FACTS) as folder:
        made = folder / "model"
        own_folder(made)
        for name, data in ((_file_of(facts), raw), (FACTS, text.encode())):
            write_new(made / name, data)
            give_usual_rights(made / name)
        give_usual_rights(made)
        sync(made)
        os.replace(made, out)
        sync(out.parent)


def _digests(facts: Mapping[str, object], raw: bytes) -> dict[str, str]:
    """What finds accidents: of the facts, and of the model's file."""
    return {"facts": f"sha256:{digest(facts)}", "model": f"sha256:{hashlib.sha256(raw).hexdigest()}"}


def _check_digests(facts: Mapping[str, object], raw: bytes, folder: Path) -> None:
    """Refuse facts or a file that are not those that were written together; earlier versions wrote no digests."""
    if "digests" not in facts:
        return
    found = _digests({name: fact for name, fact in facts.items() if name != "digests"}, raw)
    for name, file in (("facts", FACTS), ("model", _file_of(facts))):
        if not isinstance(facts["digests"], Mapping) or facts["digests"].get(name) != found[name]:
            raise InvalidInput(
                f"Expected {folder / file} as it was written with the model, got one that was changed: classes, columns or numbers may "
                "stand for others. Restore the folder or train again; give predictions other names in their table."
            )


def _file_of(facts: Mapping[str, object]) -> str:
    return WEIGHTS if "net" in facts else MODEL


def _bytes_of(model: Any, facts: Mapping[str, object]) -> bytes:
    from skops import io

    return named.weights_of(model) if "net" in facts else bytes(io.dumps(model))


def files_of_model(folder: Path) -> list[Path]:
    """The files of a model's folder."""
    return [folder / FACTS, folder / _file_of(_facts(folder))]


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
    path = folder / _file_of(facts)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ReleaseError(f"Expected a model's file, got {path} ({error.strerror}).") from None
    _check_digests(facts, raw, folder)
    try:
        return _stored(facts, raw, str(path), trust, device)
    except LabelDPError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        raise InvalidInput(f"Expected the facts of a model in {folder / FACTS}, got others. The file is damaged or was changed.") from None


def _stored(facts: Mapping[str, Any], raw: bytes, name: str, trust: Collection[str], device: str) -> StoredModel:
    inputs, classes = inputs_from_dict(facts["features"]), tuple(facts["classes"])
    if "net" in facts:
        net = named.restored(facts["net"]["name"], facts["net"]["parameters"], raw, name).to(named.device_of(device))
        return StoredModel(NetModel(net), inputs, classes, facts)
    channel = facts.get("channel")
    known = None if channel is None else (float(channel[0]), float(channel[1]))
    made = Model(read_estimator(raw, name, trust), len(classes), known)
    if drawn := facts.get("drawn"):  # towards the class frequencies
        made = replace(made, share=float(_shares([drawn["share"]], 1)[0]), frequencies=_shares(drawn["frequencies"], len(classes)))
    return StoredModel(made, inputs, classes, facts)


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
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or facts.get("kind") != "model":
        raise InvalidInput(f"Expected a model of format {FORMAT}, got something else in {folder / FACTS}.")
    return facts
