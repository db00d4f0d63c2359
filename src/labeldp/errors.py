# SPDX-License-Identifier: Apache-2.0
"""The tree of errors and warnings.

LabelDPError
├── InvalidInput      a value that was passed in is not allowed; also a ValueError
│   ├── ClassMismatch the declared classes are not those of a label column
│   └── WrongType     an estimator stops on its inputs with a TypeError; also one
├── BudgetExceeded    the ledger refused: requested, remaining and where it lies
├── LedgerError       the ledger cannot be read or written, or its history does not add up
│   └── RowsOverlap   rows that an earlier run covers were to be refused
├── MissingExtra      an optional dependency is needed; names the pip command
└── ReleaseError      a table could not be read, written or published

LabelDPWarning
├── DomainLeakWarning    the classes were read off private labels
├── LargeEpsilonWarning  a budget that protects next to nothing
├── LeftOutWarning       rows over a unit's cap are not used
├── LostClassWarning     a model has given up a class that occurs
├── MergedClassesWarning some classes are told apart by no row
├── MisfitWarning        a model is worse than a constant on held-out noisy rows
├── NoisyVotesWarning    noise outvotes teachers even where all of them agree
├── RawColumnWarning     a table holds a private column as it was
├── RepeatWarning        an earlier run's answer came back, and the labels given were not read
├── SeenRowsWarning      a model is measured on what it learned from
├── SeededNoiseWarning   noise from a seed protects nothing
├── SeparationWarning    coefficients of a regression grow without bound
├── UnmeasuredWarning    no row, or too few, can measure a model
├── UnrecordedWarning    nothing keeps a record of this spend
└── UntrainedWarning     a training changed nothing, or a model predicts the same for all rows
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

_held: ContextVar["list[LabelDPWarning] | None"] = ContextVar("labeldp_held", default=None)


class ChargesUnwarned:
    """A `with` block that, if it is `strict`, refuses a new charge before which `warn` was called.

    Until a run is charged, resumed or repeated, warnings are held back: only then is it known
    whether there is a charge to refuse. No warning ends a run that is charged.
    """

    def __init__(self, strict: bool) -> None:
        self._strict = strict

    def __enter__(self) -> None:
        self._token = _held.set([] if self._strict else None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        unwarned_no_more()
        _held.reset(self._token)


def require_unwarned() -> None:
    """Refuse a charge that is strict, if anything was warned of before it: InvalidInput with the
    first warning."""
    if held := _held.get():
        first = held[0]
        held.clear()
        raise InvalidInput(f"{first} What is strict is refused for this; nothing was charged.")


def unwarned_no_more() -> None:
    """Issue the warnings that were held back, and hold back no more: a run is charged, resumed or
    repeated, or there was none."""
    held = _held.get()
    _held.set(None)
    for warning in held or ():
        warn(warning)


def warn(warning: "LabelDPWarning", *, refusable: bool = True) -> None:
    """Issue a warning at the caller's line: the nearest code outside of the package.
    `ChargesUnwarned` may hold back a `refusable` one."""
    held = _held.get()
    if held is not None and refusable:
        held.append(warning)
        return
    # The number of our own frames differs from call to call, and Python hides a warning of one line
    # after the first: so each warning is issued at the user's line, which is counted out here.
    level, frame = 1, sys._getframe(0)
    while (
        frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == "labeldp"
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


class LabelDPError(Exception):
    """Base of every error that labeldp raises on purpose."""


class InvalidInput(LabelDPError, ValueError):
    """A value that was passed in is not allowed: what was expected, what was given, how to fix
    it."""


class ClassMismatch(InvalidInput):
    """The classes that were declared for a label column are not its classes: a label is none of
    them, or its type cannot hold them."""


class WrongType(InvalidInput, TypeError):
    """An estimator stopped on these inputs with a TypeError, before anything was charged: this is
    one, too, for who waits for one."""


class BudgetExceeded(LabelDPError):
    """The ledger refused a charge: it states the requested and the remaining epsilon, and where it
    lies."""


class LedgerError(LabelDPError):
    """The ledger cannot be read or written, or its history does not add up."""


class RowsOverlap(LedgerError):
    """A charge with overlap="refuse" covers rows that an earlier run has covered: the message names
    the run and the number of rows."""


class MissingExtra(LabelDPError, ImportError):
    """An optional dependency is missing; the message is the command that installs it."""


@contextmanager
def needs_torch() -> Iterator[None]:
    """Say what to install where an import in this context finds no torch."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "torch":
            raise
        raise MissingExtra(
            "Expected torch, which is not installed. pip install 'labeldp[torch]'"
        ) from None


class ReleaseError(LabelDPError):
    """A table could not be read, written or published."""


class LabelDPWarning(UserWarning):
    """Base of every warning that labeldp gives."""


class DomainLeakWarning(LabelDPWarning):
    """The classes were inferred from the private labels, as requested: which classes occur is not
    protected."""


class LargeEpsilonWarning(LabelDPWarning):
    """An epsilon is so large that it protects next to nothing."""


class LeftOutWarning(LabelDPWarning):
    """Rows above the cap of their unit are left out: they are neither drawn nor learned from."""


class LostClassWarning(LabelDPWarning):
    """A model gives a class practically no probability, though the noisy labels say that it
    occurs."""


class MergedClassesWarning(LabelDPWarning):
    """No row's output distinguishes some of the classes, so no model can."""


class MisfitWarning(LabelDPWarning):
    """A model is worse than a constant on held-out noisy rows."""


class NoisyVotesWarning(LabelDPWarning):
    """The teachers of PATE are so few, or the noise so large, that answers are often wrong even
    where all teachers agree."""


class RawColumnWarning(LabelDPWarning):
    """A table holds a private column as it was, or one that has the name of another data set's."""


class RepeatWarning(LabelDPWarning):
    """The stored answer of an earlier run was returned at no cost; the labels of this call were not
    read."""


class SeenRowsWarning(LabelDPWarning):
    """A model is measured on noisy labels that it learned from, which measures how well it fits
    their noise."""


class SeededNoiseWarning(LabelDPWarning):
    """The noise comes from a seed: whoever knows it can undo the noise."""


class SeparationWarning(LabelDPWarning):
    """The likelihood of a regression grows without bound, or hardly falls, along some coefficients:
    these have no finite estimate."""


class UnmeasuredWarning(LabelDPWarning):
    """No row could be held out to measure the model without bias, so no quality is estimated; or a
    score's interval excludes nothing."""


class UntrainedWarning(LabelDPWarning):
    """No step of a training changed the net, or a model predicts nearly the same for all rows."""


class UnrecordedWarning(LabelDPWarning):
    """The charge is in no durable ledger, so nothing prevents the same budget from being spent
    again."""
