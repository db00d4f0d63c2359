# SPDX-License-Identifier: Apache-2.0
"""Requests for private labels: each is charged, or resumes a crashed run, or repeats a settled one.

Until it settles, a run's folder holds its half of the secret ("secret"; all of it if the ledger has
no key source) and its pin (a keyed digest of the labelled input). It also holds the source and
public id of the release secret ("key"), and the public results of every stage, which a repeat
returns instead of drawing again. The folder is on disk before the charge, and nothing is drawn
before the charge.
"""

import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from labeldp import _validate
from labeldp._hash import digest
from labeldp.custody._encode import PLAIN, RowIds, require_public_columns
from labeldp.errors import (
    BudgetExceeded,
    InvalidInput,
    LabelDPError,
    LabelDPWarning,
    LargeEpsilonWarning,
    LedgerError,
    RepeatWarning,
    SeededNoiseWarning,
    UnrecordedWarning,
    unwarned_no_more,
    warn,
)
from labeldp.laws._columns import LabelColumns, as_classes
from labeldp.ledger._database import AggregateDraw, LabelDraw
from labeldp.ledger._ledger import Ledger, RunRecord, SameRequest, Spending, as_ledger
from labeldp.ledger._rowset import RowSet
from labeldp.ledger._run_store import RunStore
from labeldp.noise._secrets import (
    Secret,
    SecretHalves,
    UnknownReleaseSecret,
    new_run_id,
    new_secret,
    run_secret_halves,
)
from labeldp.noise._words import Key, SeededNoise, derive_key
from labeldp.receipt import Receipt, private_names

Overlap = Literal["charge", "refuse"]


LARGE_EPSILON = 8.0
CLEAR_EPSILON = 20.0  # of a row: one label in 5 * 10^8 is changed
_QUESTION, _IDENTITIES = "question", "identities"
"""Files of a run whose rows have no ids: the digest of its request without the public columns, and
the identities of the requests that resumed it."""
_WAIT_SECONDS = 60
"""How long to wait for the answer of another process that has charged the same request."""
REDRAW = "draw anew with redraw=True (of privatize, aggregate and release), which is charged"
RELEASE_ANEW = (
    "release them anew with redraw=True (of privatize and release), which is charged, and learn"
    " from the noisy labels: a fit has no new draw of its own"
)
"""How to get a new answer: of privatize, aggregate and release (REDRAW), and of a fit."""

_log = logging.getLogger("labeldp")
# warnings that this process gives once only: the ids of repeated runs, and "unrecorded"
_told: set[str] = set()

UNNAMED = "label"
"""The name of a label column that has none, where no ledger keeps it."""


@dataclass(frozen=True)
class PrivateColumn:
    """The public facts of a column of private labels that enter every key of its runs.

    Attributes
    ----------
    dataset, column : str
        The account in the ledger; of several columns the joined names, each of which is an account.
    unit : str
        The unit of protection: "row", or the name of the column of units.
    max_rows_per_unit : int
    values : tuple of K values
        The declared classes, in the order of their codes; `LabelColumns` for several columns.
    """

    dataset: str
    column: str
    unit: str
    max_rows_per_unit: int
    values: tuple[object, ...]

    def __post_init__(self) -> None:
        # Charged under another name, several columns would be missing in the accounts of each of
        # them.
        if isinstance(self.values, LabelColumns) and self.column != self.values.name:
            raise InvalidInput(
                "Expected several label columns to be charged under their own names,"
                f" {self.values.name!r}, got column={self.column!r}. Leave it out."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The private columns: one, or those that are drawn together."""
        return self.values.names if isinstance(self.values, LabelColumns) else (self.column,)

    @cached_property
    def public(self) -> dict[str, object]:
        """The facts that enter every key: account, unit, cap, and the digest of the declared
        classes in their order."""
        facts = {
            name: getattr(self, name) for name in ("dataset", "column", "unit", "max_rows_per_unit")
        }
        return facts | {"classes": digest({"classes": list(map(repr, self.values))})}


class RunSecret:
    """The secret of a run, from which all of its keys are derived. It is neither printed nor
    pickled."""

    # Without a __dict__, and under a mangled name, the bytes do not appear in vars(), in a pickle
    # or in a debugger's list of attributes.
    __slots__ = ("__secret", "column", "run_id")

    def __init__(self, run_id: str, secret: bytes, column: PrivateColumn) -> None:
        self.run_id = run_id
        self.__secret = secret
        self.column = column

    def __repr__(self) -> str:
        return f"RunSecret(run_id={self.run_id!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A run's secret is never pickled or copied. Fetch it where it is needed.")

    def key(self, purpose: str, **facts: object) -> Key:
        """Derive the key for one use."""
        # All public facts enter each key: two draws that differ in any of them, even in a name,
        # share no word.
        return derive_key(
            self.__secret,
            purpose=purpose,
            facts={**self.column.public, "run_id": self.run_id, **facts},
        )

    def answer_key(self, purpose: str, identity: str, **facts: object) -> Key:
        """Derive the key for one use in the answer to a query about groups, from the request's
        identity."""
        return derive_key(
            self.__secret, purpose=purpose, facts={"run_id": self.run_id, "plan": identity} | facts
        )

    def is_of(self, secret: "RunSecret") -> bool:
        """Tell whether both secrets belong to the same run and have the same bytes."""
        return self.run_id == secret.run_id and self.__secret == secret.__secret


class Memory:
    """The account of private labels without a ledger: it ends with the process."""

    __slots__ = ("charges", "spent")

    def __init__(self, spent: list[float] | None = None) -> None:
        self.charges: dict[str, Charge] = {}
        self.spent = [] if spent is None else spent  # epsilon of each charge

    def __repr__(self) -> str:
        return f"Memory({len(self.spent)} charges)"

    def of_some_rows(self) -> "Memory":
        """Make the account of some of the rows: it adds to the same spend."""
        return Memory(self.spent)


@dataclass(frozen=True)
class Account:
    """The account that a call is charged to, and the options of its draw.

    Attributes
    ----------
    dataset, column : str
        The names of the account, which has one budget. Without a ledger the data set may be "".
    max_rows_per_unit : int
        Largest number of rows of one unit that are drawn; 1 by default.
    ledger : Ledger, its path, or None
        None (default): nothing is recorded.
    noise : SeededNoise or None
        For tests and benchmarks on public data only.
    redraw : bool
        Draw and charge again if the same request has settled. False by default.
    overlap : {"charge", "refuse"}
        Whether rows of an earlier run are charged again (default) or refused.
    resumes : str
        The id of the only run that may be resumed, without a new charge. "" (default): any run, or
        a new charge.
    memory : Memory or None
        What labels without a ledger have spent in this process. None (default): it is not kept.
    """

    dataset: str = ""
    column: str = UNNAMED
    max_rows_per_unit: int = 1
    ledger: Ledger | None = None
    noise: SeededNoise | None = None
    redraw: bool = False
    overlap: Overlap = "charge"
    resumes: str = ""
    memory: Memory | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ledger", as_ledger(self.ledger))
        object.__setattr__(
            self,
            "max_rows_per_unit",
            _validate.integer(max_rows_per_unit=self.max_rows_per_unit, low=1),
        )
        if not isinstance(self.dataset, str):
            raise InvalidInput(
                "Expected dataset= as text, the public name of the data set, got"
                f" {_validate.shown(self.dataset)}. Write a name."
            )
        if not isinstance(self.noise, SeededNoise | None) or not isinstance(self.column, str):
            raise InvalidInput(
                "Expected noise= as a SeededNoise, and column= as text, got"
                f" {_validate.shown(self.noise)} and {_validate.shown(self.column)}."
            )

    def private_column(self, classes: Sequence[object], rows: RowIds) -> PrivateColumn:
        """Return the public facts of the column, with its declared classes and the unit of these
        rows; refuse private ids and units."""
        require_public_columns(
            rows.columns, charged_names(rows.columns, self.dataset, self.ledger), "ids and units"
        )
        return PrivateColumn(
            self.dataset,
            self.column,
            rows.unit_name,
            self.max_rows_per_unit,
            as_classes(classes),
        )

    def check(self) -> None:
        """Refuse a ledger without the name of a data set; warn of seeded noise, or, once, that
        nothing is recorded."""
        if self.ledger is not None and not self.dataset:
            raise InvalidInput(
                "Expected dataset= with a ledger: the public name under which this data set's"
                " budget is kept."
            )
        if self.noise is not None:
            warn(
                SeededNoiseWarning(
                    "The noise comes from a seed: nothing is protected. For tests and public data"
                    " only."
                )
            )
        elif self.ledger is None and "unrecorded" not in _told:
            _told.add("unrecorded")
            warn(
                UnrecordedWarning(
                    "No ledger: the record of this spend ends with the process, and then the same"
                    " labels can be drawn again, which adds to the total. Pass"
                    " ledger=labeldp.Ledger(path) and dataset='name'. (Said once.)"
                )
            )

    def warn_of_no_ids(self) -> None:
        """Warn, once, that a ledger does not know rows without ids again."""
        if self.ledger is not None and "no ids" not in _told:
            _told.add("no ids")
            warn(
                RepeatWarning(
                    "These labels have no ids, so a later call cannot be recognised as a repeat"
                    " of this one: make them with ids=. (Said once.)"
                )
            )


@dataclass(frozen=True)
class Request:
    """A request for private outputs from one column. Requests with equal fields are repeats of each
    other.

    Attributes
    ----------
    column : PrivateColumn
    epsilon, delta : float
        Total for one unit.
    asked : mapping
        The mechanism, JSON-ready: the laws and the shares of the rows that each draws, or the query
        about groups.
    prior : str
        Digest of the public prior; "" for none.
    rows : str
        Digest of the explicit ids, or else of the public columns; for a query also of each row's
        group. "" if neither is known.
    units : str
        Digest of the unit of each row; "" if each row is its own unit.
    id_name : str
        Name of the id column, since equal numbers in another column name other rows. "" without
        ids.
    of_groups : bool
        True for a query about groups, which releases no label.
    """

    column: PrivateColumn
    epsilon: float
    asked: Mapping[str, object]
    prior: str = ""
    rows: str = ""
    units: str = ""
    delta: float = 0.0
    id_name: str = ""
    of_groups: bool = False

    @cached_property
    def identity(self) -> str:
        """The digest of the request, which the ledger stores: equal for repeats of one request."""
        # It is unkeyed, so it may hold public facts only: from a digest of a few labels the labels
        # could be guessed.
        facts = {
            **self.column.public,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "laws": self.asked,
        }
        facts |= {"prior": self.prior, "rows": self.rows, "units": self.units}
        return digest(facts | ({} if self.id_name in ("", PLAIN) else {"id_name": self.id_name}))

    @property
    def question(self) -> str:
        """The digest of the request without its rows, for rows without ids: a run may then be
        recognised by its labels in their order."""
        return replace(self, rows="").identity

    @property
    def event(self) -> dict[str, object]:
        """The event for the charge's entry in the ledger."""
        kind = AggregateDraw if self.of_groups else LabelDraw
        values = self.column.values
        # By these the ledger counts the charge in the account of every column.
        several: dict[str, object] = (
            {"columns": list(values.names), "sizes": list(values.sizes)}
            if isinstance(values, LabelColumns)
            else {}
        )
        return kind(
            {**self.asked, **several},
            self.epsilon,
            self.delta,
            self.column.unit,
            self.column.max_rows_per_unit,
        ).to_dict()

    def spending(self, run_id: str) -> Spending:
        """Return the charge for one run of this request."""
        # The run of an answer about groups cannot be resumed, since its secret is never stored.
        column = self.column
        return Spending(
            column.dataset,
            column.column,
            self.epsilon,
            self.event,
            self.identity,
            run_id,
            self.delta,
            column.unit,
            column.max_rows_per_unit,
            repeatable=not self.of_groups,
        )


PinOf = Callable[[RunSecret], str]
"""Computes the pin, the keyed digest of the labelled input, under a run's secret."""

# From charge to settling
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Charge:
    """A charged run that may draw, or an earlier run whose stored answer is returned. It holds the
    secret, so it is never pickled.

    Attributes
    ----------
    receipt : Receipt
    ledger : Ledger or None
    secret : RunSecret or None
        None: the run may not draw any more.
    store : RunStore or None
        The run's folder; None if nothing is recorded.
    repeats : RunRecord or None
        The earlier run whose stored answer is returned. It has settled, unless its process died, or
        still runs, after storing the answer.
    lock : object
        The lock on the run's folder, by which other processes know that this one is at work.
    answers : dict
        What a run in memory has released, by stage, which a repeat returns.
    settled : function or None
        Notes that a run in memory is complete.
    """

    receipt: Receipt
    ledger: Ledger | None = None
    secret: RunSecret | None = None
    store: RunStore | None = None
    repeats: RunRecord | None = None
    lock: object = None
    answers: dict[str, Any] = field(default_factory=dict)
    settled: Callable[["Charge"], object] | None = None

    def __repr__(self) -> str:
        return f"Charge({self.receipt!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A charge holds a secret, so it is never pickled or copied.")

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.receipt.run_id

    def settle(self, artefact: str | None = None) -> None:
        """Record in the ledger that the run is complete, and destroy its secret. Nothing is done
        without a ledger, or for a repeat.

        Parameters
        ----------
        artefact : str, optional
            Digest of the published result. None (default): the digest of the outputs in the run's
            folder.
        """
        # The ledger first: if the process dies in between, the next request finds a settled run and
        # destroys its secret. The other way round it would find an open run without a secret, and
        # charge again.
        if self.settled is not None:
            self.settled(replace(self, secret=None))
        if self.ledger is None or self.store is None or self.repeats is not None:
            return
        self.ledger.settle(self.run_id, self.store.digest() if artefact is None else artefact)
        self.store.forget_secret()


def begin(
    request: Request,
    account: Account,
    *,
    pin_of: PinOf,
    fresh: SecretHalves | None = None,
    coverage: RowSet | None = None,
    by_labels: bool = False,
) -> Charge:
    """Charge a new run, resume a crashed one, or find the settled one that this request repeats.

    Parameters
    ----------
    request : Request
    account : Account
    pin_of : function of RunSecret
        Computes the pin of the labelled input.
    fresh : SecretHalves, optional
        Run id and secret for a new charge, from `fresh_secret`, if the caller has computed its pin
        under them. None: they are drawn here.
    coverage : RowSet, optional
        The rows that a new charge covers; None: it adds to every run of the column.
    by_labels : bool, default=False
        Also resume a crashed run with other public columns, if its labels, in their order, are the
        same.

    Returns
    -------
    Charge
        Its `secret` is None for a repeat.

    Raises
    ------
    SameRequest
        Another process has charged this request meanwhile, and the caller has pinned its rows under
        `fresh`. Nothing was charged.
    """
    ledger = account.ledger
    warn_of_epsilon(request, account)
    if ledger is None:
        unrecorded = _unrecorded(request, account)
        _check_resumed(account, unrecorded)
        return unrecorded
    runs = _runs_of(request, account, ledger)
    search = _Earlier(request, account, ledger, pin_of, by_labels)
    earlier = search.among(runs)
    _check_resumed(account, earlier)
    if earlier is not None:
        return earlier
    halves = fresh or fresh_secret(ledger)
    secret = RunSecret(halves.run_id, halves.secret, request.column)

    def prepare(store: RunStore) -> None:
        # The secret and the pin must be on disk before the charge: a charge whose noise nobody can
        # draw again would be lost epsilon.
        store.keep_secret(halves)
        if by_labels:
            store.write(_QUESTION, request.question.encode(), last=False)
        # the charge's own file is the last one
        store.write("pin", pin_of(secret).encode(), last=False)

    try:
        return _charge_new(
            request,
            ledger,
            secret,
            prepare,
            coverage,
            overlap=account.overlap,
            known=_known(request, account, runs),
        )
    except BudgetExceeded as error:
        why = search.unfinished or _other_settings(request, account, runs, coverage)
        raise BudgetExceeded(f"{error} {why}".rstrip()) from None
    except SameRequest:
        # The caller has pinned its rows under this secret; another run's pin needs another pass
        # over them.
        if fresh is not None:
            raise
    # Once more from the start: the other process's run is now among the earlier ones, and is
    # resumed or repeated.
    return begin(request, account, pin_of=pin_of, coverage=coverage, by_labels=by_labels)


def begin_once(
    request: Request,
    account: Account,
    *,
    coverage: RowSet | None = None,
    before_charge: Callable[[], None] | None = None,
    total: float | None = None,
) -> Charge:
    """Charge a run that cannot be resumed after a crash, or find the earlier run whose results are
    stored.

    If the process dies before the results are stored, the charge stays spent, and a repeat is
    charged anew.

    Parameters
    ----------
    request, account, coverage
        As in `begin`; the request names its rows.
    before_charge : function, optional
        Called before a new charge, which it may prevent by raising.
    total : float, optional
        As in `Ledger.charge`.

    Returns
    -------
    Charge
        If the results are stored, `secret` is None and `repeats` is their run, which may still have
        to be settled.
    """
    ledger = account.ledger
    warn_of_epsilon(request, account)
    if ledger is None:
        return _unrecorded(request, account)
    runs = _runs_of(request, account, ledger)
    for run in reversed([] if account.redraw else runs):
        store = RunStore(ledger.run_dir(run.run_id))
        # An abandoned run is spent, but has no answer to return.
        if run.identity != request.identity or run.state == "abandoned":
            continue
        if run.state == "settled" or store.has_results():
            return _again(run, ledger)
        # The operating system releases the lock of a process that dies: while it is held, the
        # answer may still come.
        if store.is_held():
            return _awaited(SameRequest(run.run_id), ledger)
    # This secret is never stored. With it, whoever reads the folder could subtract the noise from
    # the counts; and after a crash the same noise on counts of corrected labels would reveal the
    # corrections. So a crash costs a new charge.
    secret, locks = RunSecret(new_run_id(), new_secret(), request.column), list[object]()

    def hold(store: RunStore) -> None:
        locks.append(store.hold())

    try:
        if before_charge is not None:
            before_charge()
        known = _known(request, account, runs)
        charge = _charge_new(
            request,
            ledger,
            secret,
            hold,
            coverage,
            overlap=account.overlap,
            known=known,
            total=total,
        )
    except BudgetExceeded as error:
        why = _other_settings(request, account, runs, coverage)
        raise BudgetExceeded(f"{error} {why}".rstrip()) from None
    except SameRequest as other:
        return _awaited(other, ledger)
    return replace(charge, lock=locks)


def fresh_secret(ledger: Ledger) -> SecretHalves:
    """Draw the secret of a run that is to be charged, under a new run id."""
    return run_secret_halves(new_secret(), ledger.key_source, new_run_id())


def kept_secret(ledger: Ledger, run_id: str) -> SecretHalves | None:
    """Load the secret of a charged run; None if the half in its folder was destroyed.

    Raises
    ------
    UnknownReleaseSecret
        The ledger's key source holds another release secret than the run was charged under, or
        there is none.
    LedgerError
        The release secret cannot be read.
    """
    store = RunStore(ledger.run_dir(run_id))
    stored, key_id = store.stored_half(), store.key_id()
    if stored is None or key_id is None:
        return None if stored is None else run_secret_halves(stored, None, run_id)
    # The folder names the release secret that the run needs. A wrong one is refused here: treated
    # as a lost secret, it would lead to a new charge for the same labels.
    if ledger.key_source is None:
        raise UnknownReleaseSecret(
            f"Expected the release secret with id {key_id}, under which run {run_id} was charged,"
            " got a ledger without a key source. Say where it is with key=."
            f" {_gone(run_id, ledger)}"
        )
    try:
        return run_secret_halves(stored, ledger.key_source.expecting(key_id), run_id)
    except UnknownReleaseSecret:
        raise UnknownReleaseSecret(
            f"Expected the release secret with id {key_id}, got another release secret than run"
            f" {run_id} was charged under, from {ledger.key_source}. Name the source that holds the"
            f" former. {_gone(run_id, ledger)}"
        ) from None
    except LedgerError as error:
        raise LedgerError(f"{error} It is needed for run {run_id}.") from None


def _gone(run_id: str, ledger: Ledger) -> str:
    return (
        "If the release secret is gone, this run can never be finished: abandon it"
        f" (`{ledger.command('repair', '--abandon', run_id)}`); its epsilon stays spent. Nothing"
        " was drawn or charged."
    )


def warn_of_repeat(
    receipt: Receipt,
    of_these: str = "The labels given now were not read.",
    anew: str = REDRAW,
) -> None:
    """Warn that the stored answer of an earlier run is returned: once for each run and process, and
    in the log each time.

    Parameters
    ----------
    receipt : Receipt
    of_these : str
        A sentence that says what the answer has nothing of.
    anew : str
        How to ask for a new answer.
    """
    message = (
        f"Run {receipt.run_id} of {receipt.entry.charged_at[:10]} has answered this request for"
        f" dataset {receipt.dataset!r}, column {receipt.column!r}. Its answer came back at no cost."
        f" {of_these} If the labels are of another target, name its column (column=). If they were"
        f" corrected, {anew}."
    )
    _log.info(message)
    # A stored answer does not depend on the labels given now, which a user who has corrected them
    # would not expect.
    if receipt.run_id not in _told:
        _told.add(receipt.run_id)
        warn(RepeatWarning(f"{message} (Said once.)"))


def large_epsilon(epsilon: float, each: float, *, of_groups: bool = False) -> str:
    """Say what a large epsilon means, of which a row has `each`; "" for one that is not large."""
    if epsilon <= LARGE_EPSILON:
        return ""
    if each > CLEAR_EPSILON:
        shown = (
            "the answers come out practically exact"
            if of_groups
            else "the labels come out practically in the clear"
        )
        return (
            f"An epsilon of {epsilon:g} protects nothing: {shown}, as if no noise were drawn."
            " Prefer 2 or less."
        )
    # of answers no label comes out: what is bounded is how surely two values of one label are told
    # apart by them
    shown = (
        "whoever knows all other labels tells which of two a label is"
        if of_groups
        else "with two classes a label comes out unchanged"
    )
    also = "up to " if of_groups else ""
    return (
        f"An epsilon of {epsilon:g} protects next to nothing: {shown} with probability"
        f" {also}{1 / (1 + math.exp(-epsilon)):.6f}. Prefer 2 or less."
    )


def warn_of_epsilon(request: Request, account: Account) -> None:
    each = request.epsilon / request.column.max_rows_per_unit
    if account.noise is None and (
        large := large_epsilon(request.epsilon, each, of_groups=request.of_groups)
    ):
        warn(LargeEpsilonWarning(large))


def _check_resumed(account: Account, found: Charge | None) -> None:
    """If `account.resumes` names a run, refuse to charge a new one or to use another."""
    if account.resumes and (found is None or found.run_id != account.resumes):
        raise InvalidInput(
            f"Expected what run {account.resumes} was charged for, got other labels, rows, ids or"
            " another ledger. Nothing was charged or drawn. Give what that run was started with,"
            " or start a new one."
        )


class _Earlier:
    """The search for an earlier run of a request, to resume or to repeat.

    With `by_labels` only public columns name the rows, and they may be read differently the next
    time. Then a run also counts as this request's if only these columns differ and its pin shows
    the same labels in the same order, or if such a request has resumed it.

    Attributes
    ----------
    unfinished : str
        Why the crashed run of this very request is not resumed; "" if there is none, or if nothing
        was compared.
    """

    unfinished = ""

    def __init__(
        self, request: Request, account: Account, ledger: Ledger, pin_of: PinOf, by_labels: bool
    ) -> None:
        self._request, self._account, self._ledger, self._pin_of, self._by_labels = (
            request,
            account,
            ledger,
            pin_of,
            by_labels,
        )

    def among(self, runs: Sequence[RunRecord]) -> Charge | None:
        """Find the crashed run to resume, or the settled one that the request repeats; None for a
        new charge."""
        request, ledger, redraw = self._request, self._ledger, self._account.redraw
        # The newest of both kinds. A crashed run after a settled one is a redraw that was charged
        # and never delivered.
        open_to_repeats = [
            run
            for run in runs
            if run.state == "settled" or (run.state == "charged" and run.repeatable)
        ]
        found = next(
            (run for run in reversed(open_to_repeats) if run.identity == request.identity), None
        )
        resumed = self._resume(found) if found is not None and found.state == "charged" else None
        if resumed is not None:
            return resumed
        self._forget_secrets(runs)
        # queries release no row
        settled = [
            run
            for run in runs
            if run.state == "settled" and run.receipt.event.get("event") != AggregateDraw.kind
        ]
        # Rows without any name cannot be told from those of earlier runs, so neither a repeat nor a
        # new draw would be a safe guess.
        if not request.rows and settled and not redraw:
            raise LedgerError(
                f"Expected to know whether these rows are new: {request.column.dataset!r}, column"
                f" {request.column.column!r} was released before, and neither row ids nor public"
                " columns were given. Pass ids=, so that a repeat is recognised, or ask for a new,"
                " charged draw with redraw=True."
            )
        repeated = [
            run
            for run in settled
            if request.identity
            in (
                run.identity,
                *(self._other_identities(run) if self._by_labels else ()),
            )
        ]
        if repeated and request.rows and not redraw:
            return _again(repeated[-1], ledger)
        return self._with_other_columns(runs) if self._by_labels and not redraw else None

    def _forget_secrets(self, runs: Sequence[RunRecord]) -> None:
        """Destroy the secrets that settled or abandoned runs have left, because their process died
        in between."""
        for run in runs:
            if run.state != "charged":
                RunStore(self._ledger.run_dir(run.run_id)).forget_secret()

    def _resume(self, found: RunRecord) -> Charge | None:
        """Resume a crashed run, if its secret is still there and the labelled input is the one that
        it was charged for."""
        store = RunStore(self._ledger.run_dir(found.run_id))
        kept, pin = kept_secret(self._ledger, found.run_id), store.read("pin")
        # Without the secret its noise cannot be drawn again, and without the pin nobody can tell
        # whether these are its labels. So there is a new charge: at worst one draw is paid twice,
        # but never are two draws paid once.
        if kept is None or pin is None:
            what = (
                str(store.folder)
                if not store.folder.is_dir()
                else f"the secret of its noise in {store.folder}"
            )
            self._say(
                found,
                f"{what} is gone; its epsilon stays spent. If it was moved, move it back, and this"
                " call resumes the run.",
            )
            return None
        secret = RunSecret(found.run_id, kept.secret, self._request.column)
        # With other labels, the same words would show in which rows they differ from those drawn
        # before the crash.
        mine = self._pin_of(secret).encode()
        if mine == pin:
            unwarned_no_more()
            return Charge(found.receipt, self._ledger, secret, store)
        if mine:  # of a table, only some crashed runs are compared
            self._say(
                found,
                "for other labels: with those, this call resumes it at no further cost; corrected"
                " ones are a new charge. To give it up:"
                f" {self._ledger.command('repair', '--abandon', found.run_id)}; its epsilon stays"
                " spent.",
            )
        return None

    def _say(self, found: RunRecord, why: str) -> None:
        if found.identity == self._request.identity:
            self.unfinished = (
                f"Run {found.run_id} was charged for the same request and was never finished, but"
                f" {why}"
            )

    def _with_other_columns(self, runs: Sequence[RunRecord]) -> Charge | None:
        """Find a crashed run with the same request and the same labels in the same order, but other
        public columns."""
        # Its rows are drawn by their numbers, so it is the same draw whatever the public columns
        # are. The pin compares the labels.
        for run in reversed(runs):
            store = RunStore(self._ledger.run_dir(run.run_id))
            if (
                run.state != "charged"
                or not run.repeatable
                or store.read(_QUESTION) != self._request.question.encode()
            ):
                continue
            resumed = self._resume(run)
            if resumed is not None:
                identities = [*self._other_identities(run), self._request.identity]
                # by which repeats with these columns will find it
                store.write(_IDENTITIES, "\n".join(identities).encode())
                return resumed
        return None

    def _other_identities(self, run: RunRecord) -> list[str]:
        """List the identities, besides its own, of requests that have resumed a run."""
        return (
            (RunStore(self._ledger.run_dir(run.run_id)).read(_IDENTITIES) or b"").decode().split()
        )


def _other_settings(
    request: Request, account: Account, runs: Sequence[RunRecord], coverage: RowSet | None
) -> str:
    """Name the settings in which a request differs from an earlier run on the same rows, whose
    answer is free; "" if there is none. All of this is public."""
    event = json.loads(json.dumps(request.event))  # as the ledger has it, where tuples are lists
    rows = None if coverage is None else coverage.facts()["digest"]
    alike = [
        run
        for run in ([] if account.redraw else runs)
        if run.rows is not None
        and run.rows["digest"] == rows
        and run.receipt.event["event"] == event["event"]
        and run.identity != request.identity
        and (run.state == "settled" or (run.state == "charged" and run.repeatable))
    ]
    if not alike:
        return ""
    found = [each.split(" ")[0] for each in _validate.differences(alike[-1].receipt.event, event)]
    # of classes and prior the ledger has a digest alone
    names = dict.fromkeys(name.rpartition(".")[2] for name in found or ["classes or prior"])
    return (
        f"Expected the settings of run {alike[-1].run_id}, whose answer is free, got others:"
        f" {', '.join(names)}."
    )


def _again(run: RunRecord, ledger: Ledger) -> Charge:
    """Return a run as a charge whose stored answer is returned again, and which may not draw."""
    store = RunStore(ledger.run_dir(run.run_id))
    store.require()
    unwarned_no_more()
    return Charge(replace(run.receipt, repeated=True), ledger, None, store, run)


def _awaited(other: SameRequest, ledger: Ledger) -> Charge:
    """Wait for the answer of another process that makes the same request now; raise `other` if it
    does not come."""
    store, end = RunStore(ledger.run_dir(other.run_id)), time.monotonic() + _WAIT_SECONDS
    # The lock is read before state and results: a process that stores its answer and ends in
    # between is then seen to have stored it.
    while time.monotonic() < end:
        alive, run = store.is_held(), ledger.run(other.run_id)
        if (
            run is None
            or run.state == "abandoned"
            or not (alive or run.state == "settled" or store.has_results())
        ):
            break
        if run.state == "settled" or store.has_results():
            return _again(run, ledger)
        time.sleep(0.02)
    raise other


def _unrecorded(request: Request, account: Account) -> Charge:
    """Make the charge of a run without a ledger, or find that of the run that it repeats. Its
    secret is in memory only, or follows from a seed."""
    column, noise, memory = request.column, account.noise, account.memory
    if memory is not None and not account.redraw and request.identity in memory.charges:
        found = memory.charges[request.identity]
        return replace(found, receipt=replace(found.receipt, repeated=True))
    run_id = new_run_id() if noise is None else noise.run_id({"identity": request.identity})
    # Of a seed, run id and secret follow from the request, so that a test sees the same noise each
    # time. Receipts then say secure=False.
    secret = new_secret() if noise is None else Secret(noise.secret())
    receipt = Receipt(
        run_id,
        column.dataset,
        column.column,
        column.unit,
        column.max_rows_per_unit,
        request.epsilon,
        request.delta,
        secure=noise is None,
        event=request.event,
    )
    charge = Charge(receipt, None, RunSecret(run_id, secret, column))
    if memory is None:
        return charge
    memory.spent.append(request.epsilon)
    # A run that fails is not resumed but charged anew: its next attempt could draw rows by another
    # prior.
    return replace(charge, settled=partial(memory.charges.__setitem__, request.identity))


def _runs_of(request: Request, account: Account, ledger: Ledger) -> list[RunRecord]:
    """Read all runs of the column; refuse seeded noise, which must not be recorded as if it
    protected anything."""
    if account.noise is not None:
        raise InvalidInput(
            "Expected noise=None with a ledger: seeded noise protects nothing, so there is nothing"
            " to record. Drop one of the two."
        )
    # a charge on several columns is in the account of each
    return ledger.runs(request.column.dataset, request.column.columns[0])


def charged_names(
    names: Collection[str], dataset: str | None, ledger: Ledger | str | Path | None
) -> set[str]:
    """List those of these names that a data set has charged as private, by its
    ledger."""
    if not names or not dataset or ledger is None:
        return set()
    record = as_ledger(ledger)
    assert record is not None
    return private_names(run.receipt for run in record.runs(dataset)).intersection(names)


def _known(request: Request, account: Account, runs: Sequence[RunRecord]) -> frozenset[str] | None:
    """Return the ids of this request's runs, so that the ledger notices one of another process;
    None for a redraw, which adds one."""
    return (
        None
        if account.redraw
        else frozenset(run.run_id for run in runs if run.identity == request.identity)
    )


def _charge_new(
    request: Request,
    ledger: Ledger,
    secret: RunSecret,
    prepare: Callable[[RunStore], None],
    coverage: RowSet | None,
    *,
    overlap: Overlap,
    known: frozenset[str] | None,
    total: float | None = None,
) -> Charge:
    """Prepare a run's folder, then charge the run, unless that is strict and was warned of; if
    either fails, neither is left."""
    # In this order: a folder without a charge can be deleted, but a charge without its folder would
    # be epsilon spent for nothing.
    store = RunStore(ledger.run_dir(secret.run_id))
    try:
        prepare(store)
        spending = request.spending(secret.run_id)
        receipt = ledger.charge(spending, rows=coverage, overlap=overlap, total=total, known=known)
    except OSError as error:
        shutil.rmtree(store.folder, ignore_errors=True)
        raise LedgerError(
            f"Expected to write the run's private folder {store.folder}, got: {error.strerror}."
            " Nothing was charged."
        ) from None
    # a refused charge: its secret has drawn nothing and never will
    except (LabelDPError, LabelDPWarning):
        shutil.rmtree(store.folder, ignore_errors=True)
        raise
    unwarned_no_more()
    return Charge(receipt, ledger, secret, store)
