# SPDX-License-Identifier: Apache-2.0
"""Recipes and nets as JSON-ready data, by which the folder of a fit knows whether it is asked for the same fit again.

What a user's function or object holds is never looked at: a closure, an attribute, a default or a number of a module may be raw labels, or
be counted from them. Such code is known by its instructions, such objects by their types: no value, no length, no digest of either. Values
are told of labeldp's own settings alone, which are public by being given as settings.
"""

import functools
import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import nn

from labeldp._hash import digest

_OURS = ("labeldp",)
_KNOWN = ("labeldp", "torch")  # their code belongs to a version, not to a fit
_DEEP = 12  # values within values; what lies deeper is known by its type
_MANY = 64  # settings in one tuple: what is longer is data
_SHOWN = 60  # characters of a value in a message
_PLAIN = (bool, int, float, str, type(None))


def described(value: object) -> object:
    """A setting as JSON-ready data that is the same in another process.

    Functions are known by name, the user's by their code too, with its constants and the functions that it names or closes over; objects
    by class, and by the code that calls them. Of labeldp's own values and of `functools.partial` of its functions, numbers and texts too.

    Parameters
    ----------
    value : object
        Part of a recipe.
    """
    return _described(value, (), ours=True)


def architecture(module: nn.Module) -> dict[str, object]:
    """What a net is before training: its layers, the shapes of its weights, and the code of its own `forward`s; no weight.

    Parameters
    ----------
    module : nn.Module
    """
    kinds = {type(part) for part in module.modules()}
    own = {_name_of(kind): _described(kind.forward, (), ours=False) for kind in kinds if not _is_of(kind, _KNOWN)}
    return {
        "is": type(module).__qualname__,
        "layers": [[name, _name_of(type(part)), _settings_of(part)] for name, part in module.named_modules()],
        "weights": [[name, list(w.shape), str(w.dtype)] for name, w in module.state_dict().items()],
        "forward": own,
    }


def differences(kept: object, now: object, name: str = "") -> Iterator[str]:
    """Where two descriptions differ, by name; with `(kept ..., now ...)` where both are plain settings."""
    if isinstance(kept, Mapping) and isinstance(now, Mapping):
        for key in sorted(kept.keys() | now.keys()):
            yield from differences(kept.get(key), now.get(key), f"{name}.{key}" if name else str(key))
    elif isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        for i, pair in enumerate(zip(kept, now, strict=True)):
            yield from differences(*pair, f"{name}[{i}]")
    elif kept != now:
        plain = isinstance(kept, _PLAIN) and isinstance(now, _PLAIN)
        yield f"{name} (kept {_shown(kept)}, now {_shown(now)})" if plain else name


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _described(value: object, above: tuple[int, ...], *, ours: bool) -> object:
    """`above` are the things that this one is a part of, so that a circle ends; `ours`: it was given as a setting of labeldp's."""
    if isinstance(value, np.bool_ | np.integer | np.floating) and ours:
        value = value.item()
    if ours and isinstance(value, _PLAIN):
        return repr(value) if isinstance(value, float) else value
    if id(value) in above or len(above) > _DEEP:
        return {"is": _name_of(type(value))}
    within = (*above, id(value))
    if isinstance(value, functools.partial):
        return _of_partial(value, within)
    if isinstance(value, type):
        return {"class": _name_of(value)}
    if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType) or hasattr(value, "cache_parameters"):
        return _of_function(value, within)
    if ours and type(value) is tuple and len(value) <= _MANY:
        return [_described(each, within, ours=True) for each in value]
    return _of_object(value, within)


def _of_partial(value: "functools.partial[Any]", within: tuple[int, ...]) -> object:
    """What it was given is told where it is an argument of our own function."""
    told: dict[str, object] = {"partial": _described(value.func, within, ours=False)}
    if _is_of(value.func, _OURS):
        told["args"] = [_described(each, within, ours=True) for each in value.args]
        told["keywords"] = {name: _described(each, within, ours=True) for name, each in value.keywords.items()}
    return told


def _of_object(value: object, within: tuple[int, ...]) -> object:
    kind = type(value)
    told: dict[str, object] = {"is": _name_of(kind)}
    if _is_of(kind, _OURS) and is_dataclass(value):
        return told | {field.name: _described(getattr(value, field.name), within, ours=True) for field in fields(value)}
    call = getattr(kind, "__call__", None)  # noqa: B004 (what it is, not whether there is one)
    if isinstance(call, types.FunctionType) and not _is_of(kind, _KNOWN):
        told["call"] = _described(call, within, ours=False)
    return told


def _of_function(value: Any, within: tuple[int, ...]) -> object:
    """A function or method by its code, and by the functions that it closes over or names; one of ours or torch's by its name."""
    bound = getattr(value, "__self__", None)
    told = {} if bound is None or isinstance(bound, types.ModuleType) else {"self": _described(bound, within, ours=False)}
    function = getattr(value, "__func__", getattr(value, "__wrapped__", value))  # of a method; of a cache
    code = getattr(function, "__code__", None)
    if code is None or _is_of(function, _KNOWN):
        return {
            "function": f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}",
            **told,
        }
    cells = zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=True)
    named = ((name, function.__globals__.get(name)) for name in sorted(_names(code)))
    return {
        "function": f"{function.__module__}.{code.co_qualname}",
        "code": digest({"code": _of_code(code)}),
        "closure": {name: _described(each, within, ours=False) for name, each in cells},
        "globals": {
            name: _described(each, within, ours=False) for name, each in named if isinstance(each, types.FunctionType | functools.partial)
        },
        **told,
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


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(each) for each in code.co_consts if isinstance(each, types.CodeType)))


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _settings_of(part: nn.Module) -> str:
    """The settings of a layer as it shows them: of torch's and of labeldp's own layers, since another's may show anything."""
    return part.extra_repr() if _is_of(type(part), _KNOWN) else ""


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_of(value: Any, packages: tuple[str, ...]) -> bool:
    return str(getattr(value, "__module__", "")).split(".")[0] in packages
