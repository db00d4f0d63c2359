# SPDX-License-Identifier: Apache-2.0
"""The best of many private answers at one charge: queries and groups are tried a random number of times, and one answer comes out."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labeldp._hash import digest
from labeldp.aggregates import Aggregate, Query
from labeldp.aggregates.tuning import RepeatAndSelect
from labeldp.errors import InvalidInput
from labeldp.laws import sampling
from labeldp.privacy.answering import answered, checked, classes_digest, drawn, groups_of, key_facts, rows_digest
from labeldp.privacy.counting import GroupCounts
from labeldp.privacy.custody import AggregatePlan, begin_once
from labeldp.privacy.door import check_account, check_rows, covered_rows, set_digest, warn_once
from labeldp.privacy.encode import classes_for, encode
from labeldp.privacy.ledger import Ledger, as_ledger
from labeldp.privacy.noise import RowWords, SeededNoise, derive_key, new_secret, row_blocks
from labeldp.privacy.row_ids import Name, RowIds
from labeldp.privacy.run import Frame
from labeldp.receipt import Receipt

_Candidates = list[tuple[Query, NDArray[np.int64]]]


def aggregate_best(
    labels: ArrayLike,
    candidates: Sequence[tuple[Query, ArrayLike]],
    score: Callable[[Aggregate], float],
    *,
    tuning: RepeatAndSelect,
    score_name: str = "",
    classes: Sequence[object] | None = None,
    dataset: str | None = None,
    column: str = "label",
    ids: ArrayLike | None = None,
    ledger: Ledger | None = None,
    noise: SeededNoise | None = None,
    redraw: bool = False,
    id_name: Name | None = None,
) -> Aggregate:
    """Try queries and groups on private labels, and release the best answer, at one charge for all that was tried.

    Parameters
    ----------
    labels : (n,) array of class values
        Raw, private. Every row is protected by itself.
    candidates : sequence of (query, (n,) groups)
        Public, as in `aggregate`: each query pure (delta = 0), all of the same classes. Each run takes one at random, and fresh noise.
    score : function of an Aggregate to a number
        How good an answer is, from the answer and public facts alone, never from labels; the highest wins, NaN never. It must not raise,
        print or keep what it is shown: answers that are not released, and their number, are covered by nothing. What is no number is
        refused when it comes, and the charge is spent by then.
    tuning : RepeatAndSelect
        Expected number of runs, of shape 1 (geometric).
    score_name : str
        Public name of the score, a part of what makes a request the same again. Two scores need two names.
    classes, dataset, column, ids, ledger, noise, redraw, id_name
        As in `aggregate`.

    Returns
    -------
    Aggregate
        The best answer; `chosen` is the number of its candidate, and its receipt is that of the whole tuning.

    Raises
    ------
    InvalidInput, BudgetExceeded, LedgerError
        As in `aggregate`: before anything is charged.

    Notes
    -----
    Guarantee: `tuning.pure_epsilon` of the largest epsilon among the candidates, which is 3 times that epsilon, for each row's label;
    however many runs there were. It is charged before the first run. If the score raises, or the process dies, it is spent and nothing is
    stored; a repeat returns what was stored. The time that a call takes tells the number of runs: do not let others measure it.
    Source: Papernot and Steinke (ICLR 2022), Corollary 3.

    Examples
    --------
    >>> from labeldp.aggregates import Histogram
    >>> tries = [(Histogram(2, 50.0, 2), [0, 0, 0, 1, 1]), (Histogram(2, 50.0, 2), [0, 1, 0, 1, 0])]
    >>> purest = lambda found: float(found.values.max(axis=1).sum())
    >>> best = aggregate_best([0, 0, 0, 1, 1], tries, purest, tuning=RepeatAndSelect(30), noise=SeededNoise(1))
    >>> best.chosen, best.values.tolist(), best.receipt.epsilon
    (0, [[3, 0], [0, 2]], 150.0)
    """
    _check(candidates, score, tuning)
    named = RowIds.of(ids, None, id_name).beside(labels)
    declared, inferred = classes_for(labels, classes, candidates[0][0].n_classes)
    codes = encode(labels, declared)
    del labels
    check_rows(codes, named, 1, column)
    tried = [(query, groups_of(groups, query, len(codes))) for query, groups in candidates]
    for query, where in tried:
        query.require(np.bincount(where, minlength=query.n_groups))
    plan = AggregatePlan(
        dataset=dataset or "",
        column=column,
        unit="row",
        max_rows_per_unit=1,
        epsilon=tuning.pure_epsilon(max(query.epsilon for query, _ in tried)),
        laws=_facts(tried, tuning, score_name) | ({"classes_inferred": True} if inferred else {}),
        classes=classes_digest(declared),
        rows=digest({"rows": [rows_digest(where, query) if ids is None else set_digest(ids, where) for query, where in tried]}),
        id_name=named.id_name,
    )
    ledger = as_ledger(ledger)
    check_account(ledger, dataset)
    Frame(plan, declared, len(codes), ids, None, ledger).check(new_secret())
    warn_once(ledger, noise)
    begun = begin_once(plan, ledger, noise, redraw=redraw, covered=covered_rows(ledger, named))
    return answered(begun, ledger, lambda secret, receipt: _best(plan, tried, score, tuning, codes, declared, secret, receipt))


def _check(candidates: Sequence[tuple[Query, ArrayLike]], score: Callable[[Aggregate], float], tuning: RepeatAndSelect) -> None:
    """Refuse what cannot be charged for beforehand."""
    if not callable(score):
        raise InvalidInput(f"Expected score to be a function of an Aggregate, got {type(score).__name__}. Name it with score_name=.")
    pairs = isinstance(candidates, Sequence) and all(isinstance(pair, Sequence) and len(pair) == 2 for pair in candidates)
    if not pairs:
        raise InvalidInput("Expected candidates to be pairs of a query and the rows' groups, got others. [(query, groups)] tries one.")
    if not isinstance(tuning, RepeatAndSelect) or tuning.shape != 1:
        raise InvalidInput(f"Expected tuning=RepeatAndSelect(mean) of shape 1, the only one that is drawn exactly; got {tuning!r}.")
    if not candidates:
        raise InvalidInput("Expected at least one candidate, a pair of a query and the rows' groups; got none.")
    for query, _ in candidates:
        if checked(query).spent_delta() != 0:
            raise InvalidInput(f"Expected candidates with delta=0, got {query}. Take a pure mechanism: only those are charged for here.")
        if query.n_classes != candidates[0][0].n_classes:
            raise InvalidInput(f"Expected candidates of the same classes, got {candidates[0][0].n_classes} and {query.n_classes}.")


def _facts(tried: _Candidates, tuning: RepeatAndSelect, score_name: str) -> dict[str, object]:
    """The whole tuning as the ledger keeps it."""
    return {
        "query": "best-of",
        "candidates": [query.to_dict() for query, _ in tried],
        "tuning": {"mean": float(tuning.mean), "shape": float(tuning.shape)},
        "score": score_name,
    }


def _best(
    plan: AggregatePlan,
    tried: _Candidates,
    score: Callable[[Aggregate], float],
    tuning: RepeatAndSelect,
    codes: NDArray[np.int32],
    classes: tuple[object, ...],
    secret: bytes,
    receipt: Receipt,
) -> Aggregate:
    """All runs of a charged tuning: how many, which candidates, and their noise are words of the run's secret, each of a key of its own."""
    facts = key_facts(plan, receipt)
    picks = derive_key(secret, purpose="tuning-candidates", facts=facts)

    @lru_cache(maxsize=64)
    def counted(number: int) -> GroupCounts:
        query, where = tried[number]
        counts = GroupCounts(query.n_groups, query.n_classes)
        counts.add(where, codes)
        return counts

    def run(repetition: int) -> tuple[float, Aggregate]:
        number = int(sampling.below(RowWords(picks, row_blocks(1, repetition)), len(tried), 0, 1)[0])
        query, counts = tried[number][0], counted(number)
        key = derive_key(secret, purpose="aggregate", facts={**facts, "query": query.to_dict(), "repetition": repetition})
        answer = Aggregate(query, drawn(query, counts.table(), key, 1), counts.n_rows(), classes, receipt, chosen=number)
        return _number(score(answer)), answer

    return tuning.select(run, RowWords(derive_key(secret, purpose="tuning-repeats", facts=facts), row_blocks(1)))


def _number(score: object) -> float:
    """What a score returned; text is no number, though float reads some."""
    try:
        return float(None if isinstance(score, str | bytes) else score)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InvalidInput(
            f"Expected a number from score, got {type(score).__name__}. The charge is spent and nothing is stored: mend the score, try it "
            "on an answer about public labels, and ask again."
        ) from None
