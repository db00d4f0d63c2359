# SPDX-License-Identifier: Apache-2.0
"""The one door for answers about private labels: charge, count, draw, store, settle.

The secret of an answer is never stored: the same noise on the counts of other labels would reveal
their difference. So an answer cannot be drawn again, and a process that dies between the charge and
the store has spent its epsilon for nothing.
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import array_digest, digest
from labeldp._validate import exact
from labeldp.aggregates import Aggregate, FeatureSums, Query, TeacherQuery, Tuning
from labeldp.custody._counts import GroupCounts, RawSums
from labeldp.custody._encode import Codes, require_closed, undrawn, unseen
from labeldp.custody._private import PrivateLabels, opened
from labeldp.custody._request import (
    REDRAW,
    Account,
    Charge,
    PrivateColumn,
    Request,
    RunSecret,
    begin_once,
    warn_of_repeat,
)
from labeldp.custody._rows import TableRows, set_digest
from labeldp.custody._silence import SILENCE
from labeldp.errors import BudgetExceeded, InvalidInput, LabelDPWarning, LedgerError, warn
from labeldp.laws._exact import below
from labeldp.ledger._rowset import RowSet
from labeldp.noise._words import CHUNK, Key, RowWords, new_run_id, partition, row_blocks

_BATCH = 1 << 20
_OUTPUT = "aggregate.parquet"
_HELD_OUT, _GROUPS = "held-out", "groups"
Asked = TypeVar("Asked", bound="Question")
Counted = Callable[[int, RunSecret | None], GroupCounts]


@dataclass(frozen=True, eq=False, kw_only=True)
class Question(ABC):
    """What is asked of private labels. All of it is public, and no label has entered it.

    Attributes
    ----------
    query : Query
        The event that is charged, and the sampler of its noise. The noise covers one unit, which
        changes the counts of its own rows, or the votes of one teacher: `answer` sees to it.
    anew : str
        How to get a new draw, for messages.
    total : float or None
        Epsilon of this charge and of the charges to follow on these rows. If less than that is
        left, nothing is charged.
    answer : Aggregate
        Once it is answered.
    """

    query: Query
    anew: str = REDRAW
    total: float | None = None
    answer: Any = None
    trains: ClassVar[bool] = False
    """Counting may take minutes or fail; it comes before the charge."""

    def about(self, rows: TableRows) -> Self:
        """Refuse what does not fit these rows, before a charge."""
        return self

    @abstractmethod
    def digest(self, rows: TableRows, account: Account) -> str:
        """Compute the digest of what is asked about, by which a repeat is known."""

    @abstractmethod
    def count(self, codes: Codes, rows: NDArray[np.int64], number: int) -> GroupCounts:
        """Count the codes of the rows at these positions, for one of several queries."""

    @property
    def epsilon(self) -> float:
        """The charge."""
        return self.query.epsilon

    def facts(self) -> dict[str, object]:
        """Return the public facts that the charge records."""
        return self.query.to_dict()

    def charged(self, charge: Charge, rows: TableRows) -> Self:
        """Add what a run decides, or has stored."""
        return self

    def asked(self, rows: TableRows, secret: RunSecret | None) -> NDArray[np.bool_]:
        """Choose the rows to count: (n,) bool. By default those within their unit's cap."""
        assert secret is not None
        return rows.within_cap(secret)

    def draw(
        self, request: Request, charge: Charge, secret: RunSecret, counted: Counted
    ) -> Aggregate:
        """Draw the answer."""
        counts = counted(0, None if self.trains else secret)
        return drawn_answer(request, self.query, counts, charge, secret)


def answer(labels: PrivateLabels, question: Asked, *, redraw: bool = False) -> Asked:
    """Charge and answer a question, or return the stored answer of an earlier request.

    Parameters
    ----------
    labels : PrivateLabels
    question : Question
    redraw : bool
        Ask and charge again even if the same request has settled. False by default.

    Returns
    -------
    Question
        With its answer, and as it was asked: what an earlier request has stored takes the place of
        what was given.
    """
    if type(question) not in _REGISTERED:
        raise InvalidInput(f"Expected a registered question, got {type(question).__name__}.")
    require_closed(labels)
    rows, account = labels.rows, replace(labels.account, redraw=redraw)
    if question.query.n_classes != len(labels.classes):
        raise InvalidInput(
            f"Expected a query over {len(labels.classes)} classes, as many as the labels have, got"
            f" {question.query}."
        )
    rows.check_distinct()  # a row that is there twice would be counted twice, with noise for one
    question = question.about(rows)
    request = query_request(
        question.query,
        rows.column,
        len(labels),
        rows=question.digest(rows, account),
        facts=question.facts() | labels.noted,
        epsilon=question.epsilon,
        units=rows.units_digest,
        id_name=rows.given.id_name,
    )

    @lru_cache(maxsize=64)
    def counted(number: int, secret: RunSecret | None) -> GroupCounts:
        asked = question.asked(rows, secret)
        return question.count(opened(labels)[asked].view(Codes), np.flatnonzero(asked), number)

    def before_charge() -> None:
        _require_room(account, coverage, question.total)
        if question.trains and account.ledger is not None:
            # before a training of minutes, not after it
            account.ledger.require(request.spending(new_run_id()), rows=coverage)
            counted(0, None)

    account.check()
    over, coverage = rows.over_the_cap, rows.coverage(account.ledger)
    charge = begin_once(
        request, account, coverage=coverage, before_charge=before_charge, total=question.total
    )
    charge = replace(charge, receipt=replace(charge.receipt, rows_over_the_cap=over))
    question = question.charged(charge, rows)
    found = answered(
        charge, lambda secret: question.draw(request, charge, secret, counted), question.anew
    )
    return replace(question, answer=found)


# Groups and sums
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupQuestion(Question):
    """A query about groups of rows, with the public settings that an estimator fixes before the
    charge.

    Attributes
    ----------
    groups : (n,) or (n, T) integers
        As in `aggregate`; once it is answered int64, numbered over all tables.
    share : float in [0, 1)
        Expected share of the rows that are not counted, chosen by the run's secret, on which an
        estimator can be measured.
    origin : function of the order of the rows, or None
        Returns the digest of the data that the groups were computed from. With a ledger it
        identifies the request instead of the groups, since a clustering may differ from run to run;
        a repeat returns the stored groups.
    kept : mapping of str to array
        Public arrays that are stored with the groups.
    held_out : (n,) bool
        Once it is answered: the rows that were not counted.
    """

    groups: Any
    share: float = 0.0
    origin: Callable[[NDArray[np.intp] | None], str] | None = None
    kept: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    held_out: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    def about(self, rows: TableRows) -> Self:
        groups = self.query.groups_of_rows(self.groups, rows.n_rows)
        # The sizes of the groups are public, because the groups do not depend on labels.
        sizes = np.bincount(groups.reshape(-1), minlength=self.query.n_groups)
        self.query.require(sizes, units=rows.given.unit is not None)
        return replace(self, groups=groups)

    def digest(self, rows: TableRows, account: Account) -> str:
        # A clustering may come out differently on another machine. Its inputs name the request, so
        # that it is not charged again for that.
        if self.origin is not None and account.ledger is not None:
            return _origin_digest(self.origin, rows)
        return groups_digest(self.groups, self.query, rows)

    def facts(self) -> dict[str, object]:
        return self.query.to_dict() | ({"held_out": self.share} if self.share else {})

    def charged(self, charge: Charge, rows: TableRows) -> Self:
        held_out = _held_out_rows(charge, rows, self.share)
        if self.origin is None:
            return replace(self, held_out=held_out)
        groups, kept = _kept_with(charge, rows, self.groups, self.kept)
        return replace(self, groups=groups, kept=kept, held_out=held_out)

    def asked(self, rows: TableRows, secret: RunSecret | None) -> NDArray[np.bool_]:
        return ~self.held_out & super().asked(rows, secret)

    def count(self, codes: Codes, rows: NDArray[np.int64], number: int) -> GroupCounts:
        counts = GroupCounts(self.query.n_groups, self.query.n_classes)
        counts.add(self.groups[rows], codes)
        return counts


@dataclass(frozen=True, eq=False, kw_only=True)
class SumsQuestion(Question):
    """A query about sums of public features.

    Attributes
    ----------
    features : (n, query.n_groups) numbers
    """

    query: FeatureSums
    features: Any

    def about(self, rows: TableRows) -> Self:
        units = self.query.units(self.features)
        if len(units) != rows.n_rows:
            raise InvalidInput(f"Expected features of {rows.n_rows} rows, got {len(units)}.")
        return replace(self, features=units)

    def digest(self, rows: TableRows, account: Account) -> str:
        ids = rows.given.ids
        return (
            array_digest({"features": self.features})
            if ids is None
            else set_digest(ids, self.features)
        )

    def count(self, codes: Codes, rows: NDArray[np.int64], number: int) -> GroupCounts:
        sums = RawSums(self.query.n_groups, self.query.n_classes)
        sums.add(self.features[rows], codes)
        return sums


# The best of several answers
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class BestQuestion(Question):
    """Queries about groups of rows, of which a random number of runs is answered and the best
    answer alone is released.

    Attributes
    ----------
    tried : list of (query, (n,) groups)
    score, tuning, score_name
        As in `aggregate_best`.
    """

    tried: Sequence[tuple[Query, Any]]
    score: Callable[[Aggregate], float]
    tuning: Tuning
    score_name: str

    @property
    def epsilon(self) -> float:
        # One charge covers all candidates and all runs, because only the best answer is released.
        return self.tuning.pure_epsilon(max(query.epsilon for query, _ in self.tried))

    def about(self, rows: TableRows) -> Self:
        asked = [GroupQuestion(query=query, groups=each).about(rows) for query, each in self.tried]
        return replace(self, tried=[(each.query, each.groups) for each in asked])

    def digest(self, rows: TableRows, account: Account) -> str:
        return digest({"rows": [groups_digest(each, query, rows) for query, each in self.tried]})

    def facts(self) -> dict[str, object]:
        return {
            "query": "best-of",
            "candidates": [query.to_dict() for query, _ in self.tried],
            "tuning": self.tuning.to_dict(),
            "score": self.score_name,
        }

    def count(self, codes: Codes, rows: NDArray[np.int64], number: int) -> GroupCounts:
        query, groups = self.tried[number]
        return GroupQuestion(query=query, groups=groups).count(codes, rows, 0)

    def draw(
        self, request: Request, charge: Charge, secret: RunSecret, counted: Counted
    ) -> Aggregate:
        """Run the tuning: the number of runs, their candidates and their noise come from the run's
        secret, each under its own key."""
        # The theorem needs runs that are independent of their number and of each other. With
        # separate keys, no answer that the score sees tells anything about further candidates,
        # noise or runs.
        picks = secret.answer_key("tuning-candidates", request.identity)

        def run(repetition: int) -> tuple[float, Aggregate]:
            words = RowWords(picks, row_blocks(1, repetition))
            number = int(below(words, len(self.tried), 0, 1)[0])
            query, counts = self.tried[number][0], counted(number, secret)
            # The repetition enters the key, so that a candidate that is drawn twice gets fresh
            # noise.
            found = drawn_answer(request, query, counts, charge, secret, repetition=repetition)
            found = replace(found, chosen=number)
            return _number(self.score(found)), found

        repeats = secret.answer_key("tuning-repeats", request.identity)
        return self.tuning.select(run, RowWords(repeats, row_blocks(1)))


def _number(score: object) -> float:
    """Convert a score to a float; refuse text, some of which `float` would accept."""
    try:
        return float(None if isinstance(score, str | bytes) else score)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidInput(
            f"Expected a number from score, got {type(score).__name__}. The charge is spent and"
            " nothing is stored: mend the score, try it on an answer about public labels, and ask"
            " again."
        ) from None


# Teachers: models of disjoint rows, of which nothing leaves but the noisy majority of their votes
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class TeacherQuestion(Question):
    """A query to teachers, with what trains them.

    Attributes
    ----------
    query : TeacherQuery
    teach : function (number, rows, codes, asked) -> (n_queries,) class codes
        Trains teacher `number` on these rows of the table and their raw class codes, and gives its
        votes for the rows `asked`: a function of these four alone. It must keep, print and send
        nothing.
    origin : function of the order of the rows
        Gives the digest of features and settings, by which a repeat is known.
    seed : int
        Public: another one is another division into shards and another choice of queries.
    queries : (n_queries,) int64
        Once it is asked: positions of the rows that it is about, in the answer's order.
    shards : (n,) int64
        Once it is asked: the teacher of each row; -1 over the cap.
    """

    query: TeacherQuery
    teach: Callable[[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], ArrayLike]
    origin: Callable[[NDArray[np.intp] | None], str]
    seed: int = 0
    anew: str = "ask other teachers (another random_state=), which is charged"
    queries: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    shards: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    trains: ClassVar[bool] = True

    def about(self, rows: TableRows) -> Self:
        asked = self.query.n_queries
        if asked > rows.n_rows:
            raise InvalidInput(
                f"Expected at most as many queries as {rows.n_rows} rows, got n_queries={asked}."
                " Lower it."
            )
        return replace(
            self,
            shards=rows.public_shards(self.query.n_teachers, self.seed),
            queries=np.argsort(rows.public_order("queries", self.seed))[:asked],
        )

    def digest(self, rows: TableRows, account: Account) -> str:
        # A digest of all features costs a pass over them: it is made only where something outlives
        # this call.
        named = (account.ledger, account.noise, account.memory) != (None, None, None)
        if named:
            return _origin_digest(self.origin, rows)
        return digest({"request": "", "ids": rows.digest})

    def facts(self) -> dict[str, object]:
        return self.query.to_dict() | {"seed": self.seed}

    def asked(self, rows: TableRows, secret: RunSecret | None) -> NDArray[np.bool_]:
        return self.shards >= 0

    def count(self, codes: Codes, rows: NDArray[np.int64], number: int) -> GroupCounts:
        """Count the votes of all teachers, each of which sees the labels of its own rows alone: a
        unit changes one vote of each query."""
        counts = GroupCounts(self.query.n_queries, self.query.n_classes)
        shards = self.shards[rows]
        order = np.argsort(shards, kind="stable")
        ends = np.searchsorted(shards[order], np.arange(1, self.query.n_teachers))
        for number, mine in enumerate(np.split(order, ends)):
            votes = self._vote_of(number, rows[mine], codes[mine].astype(np.int64))
            counts.add(np.arange(len(votes)), votes)
        return counts

    def _vote_of(
        self, number: int, rows: NDArray[np.int64], codes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Train a teacher and give its votes; one that fails votes for its shard's most frequent
        class, in every query.

        That a training fails, and with which message, can depend on labels, so neither may leave. A
        constant vote is a function of the shard alone, as every other one is: one changed label
        still changes one teacher.
        """
        n_classes = self.query.n_classes

        def constant() -> NDArray[np.int64]:
            return np.full(len(self.queries), np.bincount(codes, minlength=n_classes).argmax())

        # by the machine or the user; raised below without the frames of the training
        stopped: BaseException | None = None
        try:
            with SILENCE:
                votes = np.asarray(self.teach(number, rows, codes, self.queries))
        except MemoryError:
            stopped = MemoryError(
                "The training of a teacher ran out of memory. Nothing was charged."
            )
        except KeyboardInterrupt:
            stopped = KeyboardInterrupt()
        except BaseException:  # SystemExit, too, has a text
            return constant()
        if stopped is not None:
            raise stopped
        good = (
            votes.shape == self.queries.shape
            and votes.dtype.kind in "iu"
            and votes.min() >= 0
            and votes.max() < n_classes
        )
        return votes.astype(np.int64) if good else constant()


_REGISTERED = GroupQuestion, SumsQuestion, BestQuestion, TeacherQuestion
"""The questions whose counts are proven to change by no more than the query's noise covers."""


# The request
# --------------------------------------------------------------------------------------------------


def query_request(
    query: Query,
    column: PrivateColumn,
    n_rows: int,
    *,
    rows: str,
    facts: Mapping[str, object],
    epsilon: float | None = None,
    units: str = "",
    id_name: str = "",
) -> Request:
    """Make the request for one answer; refuse a cap for which the query cannot be answered, and
    warn of a delta that is too large.

    Parameters
    ----------
    query : Query
    column : PrivateColumn
    n_rows : int
    rows, units, id_name : str
        As in `Request`.
    facts : mapping
        The public facts of query and request.
    epsilon : float, optional
        None: the query's own.
    """
    delta = query.spent_delta(query.require_cap(column.max_rows_per_unit))
    _warn_of_delta(delta, n_rows)
    return Request(
        column,
        query.epsilon if epsilon is None else epsilon,
        facts,
        rows=rows,
        units=units,
        delta=delta,
        id_name=id_name,
        of_groups=True,
    )


def _warn_of_delta(delta: float, n_rows: int) -> None:
    """Warn, before the charge, of a delta of 1 / n or more, which allows releasing a row's label as
    it is."""
    if delta * n_rows >= 1:
        warn(
            LabelDPWarning(
                f"Expected delta far below 1 over the number of rows, {1 / n_rows:.3g}, got"
                f" delta={delta!r}: at 1 / n and above, a release may tell some row's label as it"
                " is and still have this delta. Take for example 1 / n^2."
            )
        )


class GroupsDigest:
    """Digest of the group of each row, for rows without ids, computed batch by batch."""

    def __init__(self, query: Query) -> None:
        self._state, self._kind = (
            hashlib.sha256(b"labeldp groups of rows"),
            ("<u4" if query.n_groups <= 1 << 32 else "<u8"),
        )

    def update(self, groups: NDArray[np.int64]) -> None:
        """Add the next rows."""
        for start in range(0, len(groups), _BATCH):
            self._state.update(
                np.ascontiguousarray(groups[start : start + _BATCH], self._kind).reshape(-1).data
            )

    def hexdigest(self) -> str:
        """Return the SHA-256 of the rows so far, in hexadecimal."""
        return self._state.hexdigest()


def groups_digest(groups: NDArray[np.int64], query: Query, rows: TableRows) -> str:
    """Compute the digest of the group of each row, named by its id, or by its number without
    ids."""
    if rows.explicit:
        columns = groups.reshape(len(groups), -1).T
        return set_digest(rows.given.ids, *columns)  # type: ignore[arg-type] # ids are not None
    found = GroupsDigest(query)
    found.update(groups)
    return found.hexdigest()


def _origin_digest(origin: Callable[[NDArray[np.intp] | None], str], rows: TableRows) -> str:
    return digest({"request": origin(rows.by_id() if rows.explicit else None), "ids": rows.digest})


def _require_room(account: Account, coverage: RowSet | None, total: float | None) -> None:
    """Refuse a charge after which too little is left for those that will follow on the same
    rows."""
    ledger = account.ledger
    if ledger is None or total is None:
        return
    left = ledger.remaining(account.dataset, account.column, coverage)
    # Compared as exact decimals, so that a budget that is just enough is accepted.
    if left < float("inf") and exact(left) < exact(total):
        of = (
            f"for these rows of dataset {account.dataset!r}, column {account.column!r} in"
            f" {ledger.location}"
        )
        said = f"got epsilon={total!r} in two charges. Nothing was charged."
        raise BudgetExceeded(
            (
                f"Expected epsilon <= {left!r}, which remains {of}; {said} Ask for less, or allow "
                if left > 0
                else f"Expected epsilon that remains, but the budget {of} is spent; {said} Allow "
            )
            + f"more with set_budget, or `{ledger.command('set-budget')}`."
        )


def _held_out_rows(charge: Charge, rows: TableRows, share: float) -> NDArray[np.bool_]:
    """Choose the rows that are not counted, at random by the run's secret: (n,) bool."""
    if not share:
        return np.zeros(rows.n_rows, bool)
    # Stored, since the secret is not: a repeat must measure on the same rows, none of which was
    # counted.
    stored = (charge.store.load_array if charge.store else charge.answers.get)(_HELD_OUT)
    if stored is not None:
        return rows.in_table_order(stored).astype(bool)
    if charge.secret is None:
        raise LedgerError(
            f"Expected the held-out rows of run {charge.run_id} in its folder, but they are gone."
            " Restore them, or ask for a new, charged draw with redraw=True."
        )
    held_out = np.asarray(
        partition(charge.secret.key("partition"), rows.blocks(charge.secret), (share, 1.0 - share))
        == 0
    )
    charge.answers[_HELD_OUT] = rows.in_id_order(held_out)
    if charge.store is not None:
        charge.store.save_array(_HELD_OUT, charge.answers[_HELD_OUT])
    return held_out


def _kept_with(
    charge: Charge,
    rows: TableRows,
    groups: NDArray[np.int64],
    kept: Mapping[str, NDArray[np.generic]],
) -> tuple[NDArray[np.int64], Mapping[str, NDArray[np.generic]]]:
    """Store the groups and the arrays that belong to them, and return them; for a repeat return the
    stored ones."""
    store = charge.store
    if store is None:
        return groups, kept
    if charge.secret is not None:
        store.save_array(_GROUPS, rows.in_id_order(groups))
        for name, array in kept.items():
            store.save_array(name, array)
    found = {name: store.load_array(name) for name in (_GROUPS, *kept)}
    if any(array is None for array in found.values()):
        raise LedgerError(
            f"Expected the groups of run {charge.run_id} in {store.folder}, but they are gone."
            " Restore them, or ask for a new, charged draw with redraw=True."
        )
    groups = rows.in_table_order(np.asarray(found.pop(_GROUPS))).astype(np.int64)
    return groups, {name: np.asarray(array) for name, array in found.items()}


# Drawing and storing
# --------------------------------------------------------------------------------------------------


def drawn_answer(
    request: Request,
    query: Query,
    counts: GroupCounts,
    charge: Charge,
    secret: RunSecret,
    **repetition: int,
) -> Aggregate:
    """Draw the answer from raw counts, under a charged run's secret."""
    key = secret.answer_key("aggregate", request.identity, query=query.to_dict(), **repetition)
    # All rows of a unit are with one teacher, so whatever their number they change one vote.
    values = drawn(
        query,
        counts.table(),
        key,
        1 if isinstance(query, TeacherQuery) else request.column.max_rows_per_unit,
    )
    return Aggregate(query, values, counts.n_rows(), request.column.values, charge.receipt)


@unseen(undrawn)
def drawn(
    query: Query, counts: NDArray[np.int64], key: Key, max_rows_per_unit: int
) -> NDArray[np.int64]:
    """Draw the values of all groups, in chunks of groups, each group from its own streams of
    words."""
    ends = np.append(0, np.cumsum(query.streams(counts.sum(axis=1))))
    parts, start = [], 0
    # Streams are numbered over all groups, so the values do not depend on the size of a chunk.
    while start < query.n_groups:
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + CHUNK, side="right")) - 1)
        words = RowWords(key, row_blocks(int(ends[stop] - ends[start]), int(ends[start])))
        parts.append(query.release(counts[start:stop], words, max_rows_per_unit))
        start = stop
    return query.finish(np.concatenate(parts))


def answered(
    charge: Charge, draw: Callable[[RunSecret], Aggregate], anew: str = REDRAW
) -> Aggregate:
    """Draw an answer, store it and settle; or load the stored answer, without a call of `draw`, and
    tell how to ask `anew`."""
    if _OUTPUT in charge.answers:
        stored: Aggregate = charge.answers[_OUTPUT]
        return replace(stored, receipt=charge.receipt)
    if charge.secret is None:
        return _stored(charge, anew)
    answer = draw(charge.secret)
    charge.answers[_OUTPUT] = answer
    # Stored before settling: if the process dies in between, a repeat finds the answer and settles.
    if charge.store is not None:
        charge.store.write(_OUTPUT, _as_file(answer))
    charge.settle()
    return answer


def _stored(charge: Charge, anew: str) -> Aggregate:
    """Load the stored answer of a run, and settle the run if its process died before that."""
    import pyarrow.parquet as pq

    store, run, ledger = charge.store, charge.repeats, charge.ledger
    assert store is not None
    assert run is not None
    assert ledger is not None
    found, artefact = store.read(_OUTPUT), store.digest()
    # A lost or changed answer is never drawn anew under the old charge: its secret is gone, and
    # fresh noise would be a second answer.
    if found is None or (run.state == "settled" and run.artefact != artefact):
        raise LedgerError(
            f"Expected the stored answer of run {run.run_id} (settled {run.settled_at}) in"
            f" {store.folder}, but it is gone, or was changed. Restore it, or ask for a new,"
            " charged draw with redraw=True."
        )
    ledger.settle(run.run_id, artefact)
    warn_of_repeat(charge.receipt, anew=anew)
    return replace(
        Aggregate.from_table(pq.read_table(pa.BufferReader(found))), receipt=charge.receipt
    )


def _as_file(answer: Aggregate) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(answer.to_table(), buffer)
    return buffer.getvalue()
