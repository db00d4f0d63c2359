# SPDX-License-Identifier: Apache-2.0
"""What labeldp.deep offers is documented: arguments in a section, arrays with their shapes, and the
examples run."""

import doctest
import importlib
import inspect

import pytest
import torch

from labeldp import deep
from labeldp.papers import _embed, _recipes, _ssl

FUNCTIONS = {
    **{name: getattr(deep, name) for name in deep.__all__},
    **{f"models.{name}": getattr(deep.models, name) for name in deep.models.__all__},
    **{
        f"{module.__name__.split('.')[-1]}.{name}": thing
        for module in (deep.augment, _recipes, deep.schedules, _ssl, _embed)
        for name, thing in vars(module).items()
        if callable(thing)
        and getattr(thing, "__module__", "") == module.__name__
        and not name.startswith("_")
    },
}
PUBLIC = {name: thing for name, thing in FUNCTIONS.items() if not inspect.ismodule(thing)}


@pytest.mark.parametrize("name", PUBLIC)
def test_names_are_documented(name):
    thing = PUBLIC[name]
    text = inspect.getdoc(thing) or ""
    assert any(
        f"{section}\n{'-' * len(section)}" in text for section in ("Parameters", "Attributes")
    ) or thing in (deep.Form, deep.Inputs)
    if inspect.isfunction(thing):
        given = text.split("Returns\n")[0]
        missing = [p for p in inspect.signature(thing).parameters if p not in given]
        assert not missing, f"not described: {missing}"
    for member, value in (
        vars(thing).items()
        if inspect.isclass(thing) and not issubclass(thing, torch.nn.Module)
        else ()
    ):
        inherited = any(inspect.getdoc(getattr(base, member, None)) for base in thing.__mro__[1:])
        if inspect.isfunction(value) and not member.startswith("_"):
            assert value.__doc__ or inherited, f"{name}.{member}"


EXAMPLES = ("_losses", "_inputs", "schedules", "augment")


@pytest.mark.parametrize(
    "module",
    [*(f"deep.{name}" for name in EXAMPLES), "papers._recipes", "papers._embed", "papers._teacher"],
)
def test_examples_run(module):
    found = importlib.import_module(f"labeldp.{module}")
    assert doctest.testmod(found, extraglobs={"torch": torch}).failed == 0
