# SPDX-License-Identifier: Apache-2.0
"""Recipes and nets as JSON-ready data, by which the folder of a fit knows whether it is asked for the same fit again."""

import functools
import json
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labeldp._hash import array_digest, digest

_OURS = ("labeldp", "torch")  # their code belongs to a version, not to a fit
_DEEP = 12  # values within values; what lies deeper is known by its type
_SHOWN = 60  # characters of a value in a message
_BEFORE = 12  # characters that two long values share, shown before the first that differs
_PLAIN = (bool, int, str, type(None))


def described(value: object) -> object:
    """A setting as JSON-ready data that is the same in another process.

    Functions are known by name; where they are the user's also by code with its constants, defaults, closure, and the numbers, texts and
    functions of their module that they name; objects by class and attributes; nets by structure and weights.

    Parameters
    ----------
    value : object
        Part of a recipe.
    """
    return _described(value, ())


def architecture(module: nn.Module, *, weights: bool) -> dict[str, object]:
    """What a net is before training.

    Parameters
    ----------
    module : nn.Module
    weights : bool
        Whether its weights are told too: those that somebody gave, not those that follow from a seed.
    """
    kinds = {type(part) for part in module.modules()}
    own = {f"{kind.__module__}.{kind.__qualname__}": _described(kind.forward, ()) for kind in kinds if not _of_ours(kind)}
    state = module.state_dict()
    return {
        "is": type(module).__qualname__,
        "structure": re.sub(r" at 0x[0-9a-f]+", "", repr(module)),
        "weights": [[name, list(w.shape), str(w.dtype)] for name, w in state.items()],
        "forward": own,
        **({"values": _digest_of(state)} if weights else {}),
    }


def differences(kept: object, now: object, name: str = "") -> Iterator[str]:
    """Where two descriptions differ, each as `name (kept ..., now ...)`; parts of lists and mappings by their own names."""
    if isinstance(kept, Mapping) and isinstance(now, Mapping):
        for key in sorted(kept.keys() | now.keys()):
            yield from differences(kept.get(key), now.get(key), f"{name}.{key}" if name else str(key))
    elif isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        for i, pair in enumerate(zip(kept, now, strict=True)):
            yield from differences(*pair, f"{name}[{i}]")
    elif kept != now:
        first, second = _shown(json.dumps(kept), json.dumps(now))
        yield f"{name} (kept {first}, now {second})"


def _shown(kept: str, now: str) -> tuple[str, str]:
    """Both as far as a message has room, from where they differ on."""
    same = next((i for i, (a, b) in enumerate(zip(kept, now, strict=False)) if a != b), min(len(kept), len(now)))
    start = same - _BEFORE if same > _SHOWN - _BEFORE else 0
    return _cut(kept, start), _cut(now, start)


def _cut(text: str, start: int) -> str:
    return f"{'...' if start else ''}{text[start : start + _SHOWN]}{'...' if len(text) > start + _SHOWN else ''}"


def _described(value: object, above: tuple[int, ...]) -> object:
    """`above` are the things that this one is a part of, so that a circle ends."""
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bool | int | str) or value is None:
        return value
    if id(value) in above or len(above) > _DEEP:
        return {"is": type(value).__qualname__}
    within = (*above, id(value))
    if isinstance(value, Tensor | np.ndarray):
        return _digest_of({"x": value})
    if isinstance(value, nn.Module):
        return architecture(value, weights=True)
    if isinstance(value, functools.partial):
        return [_described(part, within) for part in (value.func, value.args, value.keywords)]
    if hasattr(value, "__qualname__"):
        return _of_function(value, within)
    return _of_container(value, within)


def _of_container(value: object, within: tuple[int, ...]) -> object:
    if isinstance(value, Mapping):
        return {str(key): _described(each, within) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_described(each, within) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((_described(each, within) for each in value), key=json.dumps)
    kind = type(value)
    if is_dataclass(value):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        parts = vars(value) if hasattr(value, "__dict__") else {}
    own = {} if _of_ours(kind) or not callable(value) else {"call": _of_function(kind.__call__, within)}
    return {"is": kind.__qualname__, **{name: _described(each, within) for name, each in parts.items()}, **own}


def _of_function(value: Any, within: tuple[int, ...]) -> object:
    """A function, method or class."""
    cells = [_described(_content(cell), within) for cell in getattr(value, "__closure__", None) or ()]
    name = f"{getattr(value, '__module__', '')}.{value.__qualname__}"
    code = getattr(value, "__code__", None)
    if code is None or _of_ours(value):
        return {"function": name, **({"closure": cells} if cells else {})}
    bound = getattr(value, "__self__", None)
    return {
        "function": name,
        "closure": cells,
        "code": digest({"code": _of_code(code)}),
        "defaults": [_described(part, within) for part in (value.__defaults__, value.__kwdefaults__)],
        "globals": {name: _described(each, within) for name, each in _named_by(code, value.__globals__)},
        **({} if bound is None else {"self": _described(bound, within)}),
    }


def _of_code(code: types.CodeType) -> list[object]:
    """Instructions, names and constants, those of functions inside included; not where in a file it stands."""
    constants = [_of_code(each) if isinstance(each, types.CodeType) else _constant(each) for each in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_freevars), constants]


def _constant(constant: object) -> str:
    """A constant of some code as text; the members of a set in one order."""
    if isinstance(constant, frozenset):
        return f"frozenset({sorted(map(_constant, constant))})"
    return f"({', '.join(map(_constant, constant))},)" if isinstance(constant, tuple) else repr(constant)


def _named_by(code: types.CodeType, known: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Numbers, texts and functions of the module that some code names."""
    for name in sorted(_names(code)):
        value = known.get(name)
        if name in known and isinstance(value, (*_PLAIN, float, types.FunctionType, functools.partial)):
            yield name, value


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(each) for each in code.co_consts if isinstance(each, types.CodeType)))


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _of_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] in _OURS


def _digest_of(arrays: Mapping[str, Any]) -> str:
    return array_digest({name: _array(each) for name, each in arrays.items()})


def _array(value: Any) -> "np.ndarray[Any, Any]":
    """Types that numpy lacks, such as bfloat16, as their bytes."""
    if not isinstance(value, Tensor):
        return np.asarray(value)
    flat = value.detach().cpu().contiguous()
    try:
        found: np.ndarray[Any, Any] = flat.numpy()
    except TypeError:
        found = flat.reshape(-1).view(torch.uint8).numpy()
    return found
