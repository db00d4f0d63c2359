# SPDX-License-Identifier: Apache-2.0
"""Events: what they cost, their JSON form, and the refusal of what is not known."""

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.errors import InvalidInput
from labeldp.laws import RandomizedResponse
from labeldp.privacy import events
from labeldp.privacy.events import AggregateDraw, LabelDraw, Parallel, Sequential

EPSILONS = st.floats(min_value=1e-6, max_value=700)
DRAW = LabelDraw(RandomizedResponse(10, 1.0).to_dict(), 1.0)


def draws(epsilons: list[float]) -> tuple[LabelDraw, ...]:
    return tuple(LabelDraw({"law": "rr"}, epsilon, delta=1e-9) for epsilon in epsilons)


@given(st.lists(EPSILONS, min_size=1, max_size=20))
def test_sequential_adds_and_parallel_takes_the_dearest(epsilons: list[float]) -> None:
    assert Parallel(draws(epsilons)).epsilon == max(epsilons)
    total, exact = Sequential(draws(epsilons)).epsilon, sum(Fraction(repr(epsilon)) for epsilon in epsilons)
    assert Fraction(repr(math.nextafter(total, 0))) < exact <= Fraction(repr(total))
    assert Parallel(draws(epsilons)).delta == 1e-9
    assert Sequential(draws(epsilons)).delta >= 1e-9 * len(epsilons) * (1 - 1e-12)


def test_sums_are_what_the_decimals_say() -> None:
    assert events.compose_sequential([0.1, 0.1, 0.1]) == 0.3
    assert events.compose_sequential([0.1, 0.2]) == 0.3
    assert events.compose_sequential([1e16, 1.0]) >= 1e16 + 1
    assert events.compose_sequential([1.0, 1e-300]) == math.nextafter(1.0, 2)
    assert events.compose_sequential([1.7e308, 1.7e308]) == math.inf
    assert events.compose_sequential([]) == 0


@given(EPSILONS, st.integers(1, 10**6))
def test_rows_of_a_unit_never_exceed_it(epsilon: float, rows: int) -> None:
    share = events.per_row_epsilon(epsilon, rows)
    assert Fraction(share) * rows <= Fraction(epsilon)
    assert share > epsilon / rows * (1 - 1e-15)


@pytest.mark.parametrize(("epsilon", "rows"), [(math.nan, 1), (math.inf, 1), (0.0, 1), (-1.0, 1), (1.0, 0), (1.0, 1.5), (5e-324, 2)])
def test_shares_that_are_none(epsilon: float, rows: int) -> None:
    with pytest.raises(InvalidInput, match="Expected"):
        events.per_row_epsilon(epsilon, rows)


@given(
    st.recursive(
        st.builds(LabelDraw, st.just({"law": "rr", "n_classes": 3}), EPSILONS)
        | st.builds(AggregateDraw, st.just({"query": "vote"}), EPSILONS, st.just(1e-9)),
        lambda e: st.builds(Sequential, st.tuples(e, e)) | st.builds(Parallel, st.tuples(e)),
    )
)
def test_json_round_trip(event: events.Event) -> None:
    again = events.from_dict(json.loads(json.dumps(event.to_dict())))
    assert again == event
    assert (again.epsilon, again.delta, again.unit) == (event.epsilon, event.delta, event.unit)
    hash(event)


def test_json_form_is_kept() -> None:
    """What a release wrote, every later one reads: these texts never change."""
    full = '{"event":"label-draw","law":{"epsilon":1.0,"law":"rr","n_classes":10},"epsilon":1.0,'
    full += '"delta":0.0,"unit":"row","max_rows_per_unit":1}'
    two = '[{"event":"label-draw","law":{},"epsilon":0.5},{"event":"label-draw","law":{},"epsilon":0.25}]'
    kept = {
        full: 1.0,
        '{"event":"label-draw","law":{},"epsilon":0.5}': 0.5,
        f'{{"event":"sequential","events":{two}}}': 0.75,
        f'{{"event":"parallel","events":{two}}}': 0.5,
        '{"event":"aggregate","query":{"query":"vote"},"epsilon":0.5,"delta":1e-06,"unit":"row","max_rows_per_unit":2}': 0.5,
    }
    for text, epsilon in kept.items():
        assert events.from_dict(json.loads(text)).epsilon == epsilon
    assert DRAW.to_dict() == json.loads(full)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"event": "histogram", "epsilon": 1.0}, "histogram"),
        ({"event": "sequential", "events": [DRAW.to_dict(), {"event": "vote"}]}, "vote"),
        ({"event": ["label-draw"]}, "label-draw"),
        ({"epsilon": 1.0}, "None"),
        ({**DRAW.to_dict(), "count": 10}, "count"),
        ({"event": "label-draw", "epsilon": 1.0}, "label-draw"),
        ({"event": "parallel", "events": [DRAW.to_dict()], "by": "id"}, "parallel"),
        ({"event": "parallel", "events": "none"}, "parallel"),
        ({"event": "parallel", "events": []}, "one or more"),
        ({**DRAW.to_dict(), "epsilon": math.nan}, "epsilon"),
        ({**DRAW.to_dict(), "epsilon": math.inf}, "epsilon"),
        ({**DRAW.to_dict(), "epsilon": -1.0}, "epsilon"),
        ({**DRAW.to_dict(), "epsilon": "1.0"}, "epsilon"),
        ({**DRAW.to_dict(), "delta": 1.0}, "delta"),
        ({**DRAW.to_dict(), "max_rows_per_unit": 0}, "max_rows_per_unit"),
        ({**DRAW.to_dict(), "unit": ""}, "unit"),
        ({**DRAW.to_dict(), "law": "rr"}, "law"),
        ({**AggregateDraw({}, 1.0).to_dict(), "law": {}}, "aggregate"),
        ({**AggregateDraw({}, 1.0).to_dict(), "query": "vote"}, "query"),
        ({**AggregateDraw({}, 1.0).to_dict(), "epsilon": 0.0}, "epsilon"),
        (None, "mapping"),
        ([DRAW.to_dict()], "mapping"),
    ],
)
def test_what_is_not_known_is_refused_by_name(data: object, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        events.from_dict(data)


def test_units_are_not_mixed() -> None:
    with pytest.raises(InvalidInput, match="one unit"):
        Sequential((DRAW, LabelDraw({}, 1.0, unit="user")))


def test_an_event_does_not_change_with_the_law_it_was_made_from() -> None:
    law = {"law": "rr"}
    event = LabelDraw(law, 1.0)
    law["law"] = "other"
    assert event.law == {"law": "rr"}


def test_an_aggregate_and_a_draw_of_the_same_labels_add_up() -> None:
    both = Sequential((AggregateDraw({"query": "histogram"}, 0.1, 1e-6), LabelDraw({"law": "rr"}, 0.2)))
    assert (both.epsilon, both.delta) == (0.3, 1e-6)
