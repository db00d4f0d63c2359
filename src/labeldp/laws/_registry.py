# SPDX-License-Identifier: Apache-2.0
"""The registry of laws: the only list of the laws there are, and the only place that reads names such as "rr-top-k:3"."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TypeVar

from labeldp import _validate
from labeldp.errors import InvalidInput
from labeldp.laws._base import Law

LAWS: dict[str, type[Law]] = {}
"""Every law by its name."""

AnyLaw = TypeVar("AnyLaw", bound=Law)
Number = int | float

_OWN = "A law of your own is registered first: labeldp.register_law(cls), or --law package.module:Class."


def register_law(cls: type[AnyLaw]) -> type[AnyLaw]:
    """Make a law known by its name to estimators, specs, files and the command line; usable as a decorator.

    Parameters
    ----------
    cls : subclass of Law, a frozen dataclass
        Its `name` must be free; a class that is defined anew, as in a notebook, takes its own place.

    Raises
    ------
    InvalidInput
        It is no law, lacks a method, or its name is taken or none.

    Notes
    -----
    Before such a law is charged for, it must pass `labeldp.testing.check_law`: see docs/laws.md.
    """
    if not (isinstance(cls, type) and issubclass(cls, Law)):
        raise InvalidInput(f"Expected a subclass of labeldp.Law, got {_validate.shown(cls)}.")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise InvalidInput(f"Expected a law with all methods of labeldp.Law, got {cls.__name__} without {missing}. Write them.")
    name = getattr(cls, "name", None)
    if not (isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)):
        raise InvalidInput(f"Expected a law with a name of letters, digits and dashes, got {_validate.shown(name)} in {cls.__name__}.")
    known = LAWS.setdefault(name, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise InvalidInput(f"Expected a new law name, got {name!r}, which {known.__name__} has. Rename the law.")
    LAWS[name] = cls
    return cls


def spellings() -> list[str]:
    """List the names of all laws as a person writes them, such as "rr-top-k:K" and "subset[:SIZE]"."""
    return [_spelling(cls) for cls in LAWS.values()]


def parse_law(text: str) -> tuple[type[Law], dict[str, Number]]:
    """Read a law's name, with a number after a colon where the law takes one.

    Parameters
    ----------
    text : str
        Such as "rr", "subset", "subset:2", "rr-top-k:3".

    Returns
    -------
    The law's class, and the field that the number sets, if any.

    Raises
    ------
    InvalidInput
        No law has this name, or it takes no such number, or it cannot be made without more.
    """
    name, colon, number = text.partition(":") if isinstance(text, str) else (text, "", "")
    cls = _law_type(name)
    if colon and not cls.parameter:
        raise InvalidInput(f"Expected law {name!r} without a number, got law={text!r}. Leave the colon out.")
    given = {cls.parameter: _number(text, number, cls)} if colon else {}
    made = {"n_classes", "epsilon", *given}
    missing = [field.name for field in fields(cls) if field.name not in made and field.default is field.default_factory is MISSING]
    if missing == [cls.parameter]:
        raise InvalidInput(f"Expected {_spelling(cls)}, got law={text!r}. Say the number, for example {name}:3.")
    if missing:
        listed = ", ".join(missing)
        raise InvalidInput(f"Expected a Law instance for {name!r}, which cannot be made without {listed}. Pass law={cls.__name__}(...).")
    return cls, given


def law_named(text: str, n_classes: int, epsilon: float) -> Law:
    """Make the law with this name (see `parse_law`), over so many classes and at this epsilon."""
    cls, given = parse_law(text)
    return law_from_dict({"law": cls.name, "n_classes": n_classes, "epsilon": epsilon} | given)


def law_from_dict(data: Mapping[str, object]) -> Law:
    """Make the law that `to_dict` (or `event`) described; an unknown name or field is refused."""
    cls = _law_type(data.get("law"))
    values = {k: v for k, v in data.items() if k not in ("law", "epsilon_exact")}
    known = {f.name for f in fields(cls)}
    if extra := sorted(set(values) - known):
        raise InvalidInput(f"Expected only {', '.join(sorted(known))} for law {cls.name!r}, got also {', '.join(extra)}.")
    try:
        return cls.from_fields(values)
    except TypeError as error:
        raise InvalidInput(f"Expected the fields {', '.join(sorted(known))} for law {cls.name!r}: {error}.") from error


def _law_type(name: object) -> type[Law]:
    cls = LAWS[_validate.one_of(LAWS, law=name, fix=_OWN)]
    if cls.name != name:
        raise InvalidInput(f"Expected {cls.__name__} to keep the name that it was registered by, {name!r}, got {cls.name!r}.")
    return cls


def _spelling(cls: type[Law]) -> str:
    if not cls.parameter:
        return cls.name
    needed = any(field.name == cls.parameter and field.default is field.default_factory is MISSING for field in fields(cls))
    number = f":{cls.parameter.upper()}"
    return cls.name + (number if needed else f"[{number}]")


def _number(text: str, number: str, cls: type[Law]) -> Number:
    """Read the number after the colon; whether it may be a fraction, and how large, is the law's to say."""
    try:
        return _validate.positive(law=float(number)) if not number.isdecimal() else _validate.integer(law=int(number), low=1)
    except ValueError:  # InvalidInput is one
        raise InvalidInput(f"Expected {_spelling(cls)} with a number above 0, got law={text!r}.") from None
