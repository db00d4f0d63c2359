# SPDX-License-Identifier: Apache-2.0
"""A run from charge to settling: what makes it the same run, its private folder, and how a crashed one is picked up again.

A run's folder holds its stored half of the secret ("secret"; all of it where the ledger has no key source) and its pin (a keyed digest
of the labelled input) until it settles; where the release secret is and its public id ("key"); and the public results of every step, so
that a repeat reads them instead of drawing again. The folder exists before the charge; nothing is drawn before the charge.
"""

import logging
import math
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NoReturn

from labeldp._hash import digest
from labeldp.errors import InvalidInput, LabelDPError, LargeEpsilonWarning, LedgerError, RepeatWarning
from labeldp.privacy import noise as noise_source
from labeldp.privacy.events import AggregateDraw, LabelDraw
from labeldp.privacy.ledger import Ledger, RunRecord
from labeldp.privacy.ledger_charge import SameRequest
from labeldp.privacy.noise import SeededNoise
from labeldp.privacy.row_ids import PLAIN
from labeldp.privacy.rowset import RowSet
from labeldp.privacy.run_store import RunStore
from labeldp.privacy.secrets import Secret, SecretHalves, UnknownReleaseSecret, run_secret_halves
from labeldp.receipt import Receipt

__all__ = ["AggregatePlan", "Begun", "PinOf", "RunPlan", "RunStore", "begin", "begin_once", "fresh_secret", "kept_secret", "tell_of_repeat"]

LARGE_EPSILON = 8.0
_QUESTION, _NAMES = "question", "identities"
"""Files of a run whose rows have no ids: what was asked, whatever the public columns are, and as which requests it was picked up."""
_log = logging.getLogger("labeldp")
_told: set[str] = set()  # runs that this process has spoken of


@dataclass(frozen=True)
class RunPlan:
    """The public facts that make two requests the same request.

    Attributes
    ----------
    dataset, column, unit : str
        What is charged and what is protected ("row", or the name of the unit's column).
    max_rows_per_unit : int
    epsilon, delta : float
        The unit's total.
    laws : mapping
        The laws and how the rows are divided among them, as JSON-ready data.
    classes, prior : str
        Digests of the declared classes and of the public prior ("" for none).
    rows : str
        Digest of the explicit ids, or of the public columns; "" if neither is known.
    units : str
        Digest of which row is about whom; "" where each row is its own unit.
    id_name : str
        What the ids are called: equal numbers of another column are other rows. "" without ids.
    """

    dataset: str
    column: str
    unit: str
    max_rows_per_unit: int
    epsilon: float
    laws: Mapping[str, object]
    classes: str
    prior: str = ""
    rows: str = ""
    units: str = ""
    delta: float = 0.0
    id_name: str = ""

    @property
    def identity(self) -> str:
        """Digest of all of it: requests with equal identity are repeats of each other."""
        facts = asdict(self)
        if self.id_name in ("", PLAIN):  # as before ids had names
            del facts["id_name"]
        return digest(facts)

    @property
    def question(self) -> str:
        """Digest of all but the rows: of a run whose rows have no ids, and whose labels in their order may name them as well."""
        return replace(self, rows="").identity

    @property
    def event(self) -> dict[str, object]:
        """What is done, as the ledger keeps it."""
        return LabelDraw(self.laws, self.epsilon, self.delta, self.unit, self.max_rows_per_unit).to_dict()


@dataclass(frozen=True)
class AggregatePlan(RunPlan):
    """The public facts of a query about groups: `laws` is the query, `rows` says which row is in which group."""

    @property
    def event(self) -> dict[str, object]:
        """What is done, as the ledger keeps it."""
        return AggregateDraw(self.laws, self.epsilon, self.delta, self.unit, self.max_rows_per_unit).to_dict()


Overlap = Literal["charge", "refuse"]


@dataclass(frozen=True)
class Covered:
    """Which rows, or units, a charge is about, and what to do where earlier runs have some of them.

    Attributes
    ----------
    rows : RowSet or None
        None: not known.
    overlap : {"charge", "refuse"}
    """

    rows: RowSet | None = None
    overlap: Overlap = "charge"


@dataclass(frozen=True)
class Begun:
    """A run that may draw, or one that has settled. Not shown or stored: it holds the secret."""

    receipt: Receipt
    secret: bytes | None
    store: RunStore | None
    settled: RunRecord | None = None
    held: object = None
    """Tells other processes that this one is at work, as long as it is not collected."""

    def __repr__(self) -> str:
        return f"Begun({self.receipt!r})"

    def with_left_out(self, rows: int) -> "Begun":
        """The same, whose receipt says how many rows are over their unit's cap."""
        return replace(self, receipt=replace(self.receipt, rows_over_the_cap=rows))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("A begun run holds a secret, so it is never pickled or copied.")


def tell_of_repeat(receipt: Receipt, of_these: str = "the labels given now were not read") -> None:
    """Say that the answer of a run comes back, and what became of the labels given: aloud once a run and process, in the log each time."""
    said = (
        f"Run {receipt.run_id} of {receipt.charged_at[:10]} has answered this request for dataset {receipt.dataset!r}, column "
        f"{receipt.column!r}: its answer came back at no cost, and {of_these}. If they are of another target, "
    )
    message = (
        f"{said}name its column (column=). If they were corrected, draw anew with redraw=True (of privatize, aggregate and release; "
        "--redraw), which is charged."
    )
    cli = (
        f"{said}rename its column. If they were corrected, draw anew with labeldp release --redraw (or aggregate --redraw), which is "
        "charged; labeldp train learns from what was released."
    )
    _log.info(message)
    if receipt.run_id not in _told:
        _told.add(receipt.run_id)
        warnings.warn(RepeatWarning(f"{message} (Said once.)", cli=cli), stacklevel=depth_outside())


def warn_of_epsilon(epsilon: float) -> None:
    """Say so where the budget protects next to nothing."""
    if epsilon > LARGE_EPSILON:
        warnings.warn(
            f"An epsilon of {epsilon:g} protects next to nothing: with two classes a label comes out unchanged with probability "
            f"{1 / (1 + math.exp(-epsilon)):.6f}. Prefer 2 or less.",
            LargeEpsilonWarning,
            stacklevel=depth_outside(),
        )


def depth_outside() -> int:
    """How far above the caller's own frame the nearest code outside of labeldp is, as a stack level of the caller's warning."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).split(".")[0] == "labeldp":
        level, frame = level + 1, frame.f_back
    return level


def _again(run: RunRecord, ledger: Ledger) -> Begun:
    """A run whose answer is given once more."""
    return Begun(replace(run.receipt, repeated=True), None, RunStore(ledger.run_dir(run.run_id)), run)


def fresh_secret(ledger: Ledger) -> SecretHalves:
    """The secret of a run that is still to be charged, under a new run id."""
    return run_secret_halves(noise_source.new_secret(), ledger.key_source, noise_source.new_run_id())


def kept_secret(ledger: Ledger, run_id: str) -> SecretHalves | None:
    """The secret of a charged run; None if the half in its folder is gone.

    Raises
    ------
    UnknownReleaseSecret
        The ledger's key source holds another release secret than the run was charged under, or there is none.
    LedgerError
        The release secret cannot be read.
    """
    store = RunStore(ledger.run_dir(run_id))
    stored, key_id = store.stored_half(), store.key_id()
    if stored is None or key_id is None:
        return None if stored is None else run_secret_halves(stored, None, run_id)
    if ledger.key_source is None:
        raise UnknownReleaseSecret(
            f"Expected the release secret with id {key_id}, under which run {run_id} was charged, got a ledger without a key source. "
            f"Say where it is with key= (--key). {_gone(run_id)}"
        )
    try:
        return run_secret_halves(stored, ledger.key_source.expecting(key_id), run_id)
    except UnknownReleaseSecret:
        raise UnknownReleaseSecret(
            f"Expected the release secret with id {key_id}, got another release secret than run {run_id} was charged under, from "
            f"{ledger.key_source}. Name the source that holds the former. {_gone(run_id)}"
        ) from None
    except LedgerError as error:
        raise LedgerError(f"{error} It is needed for run {run_id}.") from None


def _gone(run_id: str) -> str:
    return (
        f"If the release secret is gone, this run can never be finished: abandon it with `labeldp ledger abandon {run_id}`; "
        "its epsilon stays spent. Nothing was drawn or charged."
    )


PinOf = Callable[[bytes, str], str]

_WAIT_SECONDS = 60
"""For the answer of another process that has charged the same request."""


def begin(
    plan: RunPlan,
    ledger: Ledger | None,
    noise: SeededNoise | None,
    *,
    redraw: bool,
    pin_of: PinOf,
    names_rows: bool,
    fresh: SecretHalves | None = None,
    covered: Covered | None = None,
    resumes: str = "",
    by_labels: bool = False,
) -> Begun:
    """Charge a run, pick up a crashed one, or find the settled one that this request repeats.

    Parameters
    ----------
    plan : RunPlan
    ledger : Ledger or None
        None: nothing is recorded, a fresh secret.
    noise : SeededNoise or None
        Only without a ledger.
    redraw : bool
        A new, charged draw even if the same request has settled.
    pin_of : function of (secret, run id)
        The keyed digest of the labelled input under that run's secret.
    names_rows : bool
        The plan says which rows it is about, by ids or by a digest of the public columns.
    fresh : SecretHalves, optional
        For a new charge, where the caller had to choose run id and secret beforehand, with `fresh_secret`.
    covered : Covered, optional
        Which rows a new charge is about; None: it adds to every run of the column.
    resumes : str
        Id of the run that must be picked up, or "" for any: then nothing is ever charged.
    by_labels : bool
        A run that failed is picked up, too, where the public columns are others and the labels, in their order, are the same.
    """
    known = None if ledger is None or redraw else ledger.requested(plan.dataset, plan.column, plan.identity)
    warn_of_epsilon(plan.epsilon if noise is None else 0.0)
    earlier = _unrecorded(plan, noise) if ledger is None else _earlier(plan, ledger, noise, redraw, pin_of, names_rows, by_labels)
    if resumes and (earlier is None or earlier.receipt.run_id != resumes):
        raise InvalidInput(
            f"Expected what run {resumes} was charged for, got other labels, rows, ids or another ledger. Nothing was charged or drawn. "
            "Give what that run was begun with, or begin a new one."
        )
    if earlier is not None or ledger is None:
        assert earlier is not None
        return earlier
    try:
        question = plan.question if by_labels else ""
        return _charge(plan, ledger, pin_of, fresh or fresh_secret(ledger), covered or Covered(), known, question)
    except SameRequest:
        if fresh is not None:  # the caller has bound its work to this run id
            raise
    return begin(plan, ledger, noise, redraw=redraw, pin_of=pin_of, names_rows=names_rows, covered=covered, by_labels=by_labels)


def _earlier(
    plan: RunPlan, ledger: Ledger, noise: SeededNoise | None, redraw: bool, pin_of: PinOf, names_rows: bool, by_labels: bool
) -> Begun | None:
    """The crashed run to pick up, or the settled one that this request repeats; None for a new charge."""
    _refuse_seed(noise)
    found = ledger.find(plan.dataset, plan.column, plan.identity)
    if found is not None and found.state == "charged":
        resumed = _resume(found, ledger, pin_of)
        if resumed is not None:
            return resumed
    runs = ledger.runs(plan.dataset, plan.column)
    closed = [run for run in runs if run.state != "charged"]
    for run in closed:
        RunStore(ledger.run_dir(run.run_id)).forget_secret()  # where a process died right after settling, or the run was given up
    settled = [run for run in closed if run.state == "settled" and run.event.get("event") != AggregateDraw.kind]  # those release no row
    repeated = [run for run in settled if run.identity == plan.identity or (by_labels and plan.identity in _names_of(run, ledger))]
    if repeated and names_rows and not redraw:
        return _again(repeated[-1], ledger)
    if settled and not redraw and not names_rows:
        raise LedgerError(
            f"Expected to know whether these rows are new: {plan.dataset!r}, column {plan.column!r} was released before, and neither "
            "row ids nor public columns were given. Pass ids=, so that a repeat is recognised, or ask for a new, charged draw with "
            "redraw=True."
        )
    return _mended(plan, ledger, runs, pin_of) if by_labels and not redraw else None


def _mended(plan: RunPlan, ledger: Ledger, runs: Sequence[RunRecord], pin_of: PinOf) -> Begun | None:
    """A run that failed and was asked the same of the same labels in the same order, but with other public columns.

    Its labels are drawn, or will be, by their places: with whatever columns they are read, it is the same draw. The pin compares them.
    """
    for run in reversed(runs):
        store = RunStore(ledger.run_dir(run.run_id))
        if run.state != "charged" or not run.repeatable or store.read(_QUESTION) != plan.question.encode():
            continue
        resumed = _resume(run, ledger, pin_of)
        if resumed is not None:
            store.write(_NAMES, "\n".join([*_names_of(run, ledger), plan.identity]).encode())  # its repeats will be known by these, too
            return resumed
    return None


def _names_of(run: RunRecord, ledger: Ledger) -> list[str]:
    """Identities, besides its own, of requests that have picked a run up."""
    return (RunStore(ledger.run_dir(run.run_id)).read(_NAMES) or b"").decode().split()


def _unrecorded(plan: RunPlan, noise: SeededNoise | None) -> Begun:
    run_id = noise_source.new_run_id() if noise is None else noise.run_id({"identity": plan.identity})
    receipt = Receipt(
        run_id, plan.dataset, plan.column, plan.unit, plan.max_rows_per_unit, plan.epsilon, plan.delta, False, noise is None, plan.event
    )
    return Begun(receipt, noise_source.new_secret() if noise is None else Secret(noise.secret()), None)


def _refuse_seed(noise: SeededNoise | None) -> None:
    if noise is not None:
        raise InvalidInput(
            "Expected noise=None with a ledger: seeded noise protects nothing, so there is nothing to record. Drop one of the two."
        )


def begin_once(
    plan: RunPlan,
    ledger: Ledger | None,
    noise: SeededNoise | None,
    *,
    redraw: bool,
    covered: Covered | None = None,
    before_charge: Callable[[], None] | None = None,
    total: float | None = None,
) -> Begun:
    """Charge a run that nobody can pick up, or find the one whose outputs are stored already.

    Its secret is kept in this process alone: a crash before the outputs are stored leaves the charge spent, and a repeat is a new charge.

    Parameters
    ----------
    plan, ledger, noise, redraw, covered
        As in `begin`; the plan names its rows.
    before_charge : function, optional
        Called where nothing is stored, before the charge, which it may stop by raising.
    total : float, optional
        As in `Ledger.charge`.

    Returns
    -------
    Begun
        `secret` is None where the outputs are stored: `settled` is then their run, which may still have to be settled.
    """
    warn_of_epsilon(plan.epsilon if noise is None else 0.0)
    if ledger is None:
        return _unrecorded(plan, noise)
    _refuse_seed(noise)
    known = None if redraw else ledger.requested(plan.dataset, plan.column, plan.identity)
    for run in reversed(ledger.runs(plan.dataset, plan.column) if not redraw else []):
        store = RunStore(ledger.run_dir(run.run_id))
        if run.identity != plan.identity or run.state == "abandoned":
            continue
        if run.state == "settled" or store.has_results():
            return _again(run, ledger)
        if store.is_held():
            return _awaited(SameRequest(run.run_id), ledger)
    if before_charge is not None:
        before_charge()
    run_id = noise_source.new_run_id()
    secret = noise_source.new_secret()

    held: list[object] = []

    def prepare(store: RunStore) -> None:
        held.append(store.hold())

    try:
        begun = _charged(plan, ledger, run_id, secret, covered or Covered(), prepare, repeatable=False, total=total, known=known)
        return replace(begun, held=held)
    except SameRequest as other:
        return _awaited(other, ledger)


def _awaited(other: SameRequest, ledger: Ledger) -> Begun:
    """The answer of another process that makes the same request now; the error where it does not come."""
    store, end = RunStore(ledger.run_dir(other.run_id)), time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < end:
        alive, run = store.is_held(), ledger.run(other.run_id)
        if run is None or run.state == "abandoned" or not (alive or run.state == "settled" or store.has_results()):
            break
        if run.state == "settled" or store.has_results():
            return _again(run, ledger)
        time.sleep(0.02)
    raise other


def _charge(
    plan: RunPlan,
    ledger: Ledger,
    pin_of: PinOf,
    fresh: SecretHalves,
    covered: Covered,
    known: frozenset[str] | None,
    question: str,
) -> Begun:
    def prepare(store: RunStore) -> None:
        store.keep_secret(fresh)
        if question:
            store.write(_QUESTION, question.encode())
        store.write("pin", pin_of(fresh.secret, fresh.run_id).encode())

    return _charged(plan, ledger, fresh.run_id, fresh.secret, covered, prepare, repeatable=True, known=known)


def _charged(
    plan: RunPlan,
    ledger: Ledger,
    run_id: str,
    secret: bytes,
    covered: Covered,
    prepare: Callable[[RunStore], None],
    *,
    repeatable: bool,
    total: float | None = None,
    known: frozenset[str] | None = None,
) -> Begun:
    """The charge of a run whose folder is prepared before it; where either fails, neither is left."""
    store = RunStore(ledger.run_dir(run_id))
    try:
        prepare(store)
        receipt = ledger.charge(
            dataset=plan.dataset,
            column=plan.column,
            unit=plan.unit,
            max_rows_per_unit=plan.max_rows_per_unit,
            epsilon=plan.epsilon,
            delta=plan.delta,
            event=plan.event,
            identity=plan.identity,
            run_id=run_id,
            repeatable=repeatable,
            rows=covered.rows,
            overlap=covered.overlap,
            total=total,
            known=known,
        )
    except OSError as error:
        shutil.rmtree(store.folder, ignore_errors=True)
        raise LedgerError(
            f"Expected to write the run's private folder {store.folder}, got: {error.strerror}. Nothing was charged."
        ) from None
    except LabelDPError:
        shutil.rmtree(store.folder, ignore_errors=True)
        raise
    return Begun(receipt, secret, store)


def _resume(found: RunRecord, ledger: Ledger, pin_of: PinOf) -> Begun | None:
    """The crashed run, if its secret is still there and the labelled input is the one it was charged for."""
    store = RunStore(ledger.run_dir(found.run_id))
    kept, pin = kept_secret(ledger, found.run_id), store.read("pin")
    if kept is None or pin is None or pin_of(kept.secret, found.run_id).encode() != pin:
        return None
    return Begun(found.receipt, kept.secret, store)
