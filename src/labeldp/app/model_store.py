# SPDX-License-Identifier: Apache-2.0
"""A trained model as a folder: model.skops (the estimator, in a format that runs no code) and model.json (everything else)."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labeldp._files import sync
from labeldp.errors import InvalidInput, ReleaseError
from labeldp.learn.model import Model
from labeldp.tables.features import Features
from labeldp.tables.publish import workplace

FORMAT = 1
MODEL, FACTS = "model.skops", "model.json"
SAFE = frozenset(
    {
        # what scikit-learn's histogram gradient boosting is made of, beyond what skops trusts by itself
        "functools.partial",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn.utils.validation.check_array",
    }
)


@dataclass(frozen=True)
class StoredModel:
    """A model that was read back.

    Attributes
    ----------
    model : Model
        Predicts the probabilities of class codes.
    features : Features
    classes : tuple
        Class values by code.
    facts : mapping
        model.json.
    """

    model: Model
    features: Features
    classes: tuple[object, ...]
    facts: Mapping[str, Any]


def check_free(out: Path) -> None:
    """The folder is not there yet, or is empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ReleaseError(f"Expected a new or empty folder for the model, got {out}. Remove it, or choose another name.")


def save_model(out: Path, estimator: Any, facts: Mapping[str, object]) -> None:
    """Write the folder, whole or not at all."""
    from skops import io

    check_free(out)
    with workplace(out) as folder:
        made = folder / "model"
        made.mkdir()
        _write(made / MODEL, io.dumps(estimator))
        _write(
            made / FACTS,
            json.dumps({"format": FORMAT, "kind": "model"} | dict(facts), indent=2, ensure_ascii=False, allow_nan=False).encode(),
        )
        sync(made)
        os.replace(made, out)
        sync(out.parent)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def load_model(folder: Path, trust: Collection[str] = ()) -> StoredModel:
    """Read a folder that `save_model` wrote.

    Parameters
    ----------
    trust : collection of str
        Types that the file may build although neither skops nor labeldp knows them.

    Raises
    ------
    InvalidInput
        It is no model's folder, or its file wants to build types that are not trusted: they are listed, nothing is built.
    """
    facts = _facts(folder)
    try:
        raw = (folder / MODEL).read_bytes()
    except OSError as error:
        raise ReleaseError(f"Expected a model's file, got {folder / MODEL} ({error.strerror}).") from None
    estimator = read_estimator(raw, str(folder / MODEL), trust)
    channel = facts.get("channel")
    model = Model(estimator, len(facts["classes"]), None if channel is None else (float(channel[0]), float(channel[1])))
    return StoredModel(model, Features.from_dict(facts["features"]), tuple(facts["classes"]), facts)


def read_estimator(raw: bytes, name: str, trust: Collection[str] = ()) -> Any:
    """The estimator in a file of skops; `name` is the file's, for messages. See `load_model`."""
    from skops import io

    try:
        unknown = sorted(set(io.get_untrusted_types(data=raw)) - SAFE - set(trust))
    except Exception:
        raise InvalidInput(f"Expected a model in the format of skops, got something else in {name}.") from None
    if unknown:
        asked = " ".join(f"--trust {each}" for each in unknown)
        raise InvalidInput(f"Expected a model of known types, got also {', '.join(unknown)}. If you trust who made the file, add {asked}.")
    return io.loads(raw, trusted=sorted({*SAFE, *trust}))


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
