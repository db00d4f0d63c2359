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
from labeldp.ledger import _database as events
from labeldp.ledger._database import AggregateDraw, LabelDraw

EPSILONS = st.floats(min_value=1e-6, max_value=700)
DRAW = LabelDraw(RandomizedResponse(10, 1.0).to_dict(), 1.0)


@given(EPSILONS, st.integers(1, 10**6))
def test_rows_of_a_unit_never_exceed_it(epsilon: float, rows: int) -> None:
    share = events.per_row_epsilon(epsilon, rows)
    assert Fraction(share) * rows <= Fraction(epsilon)
    assert share > epsilon / rows * (1 - 1e-15)


def test_json_form_is_kept() -> None:
    """What a release wrote, every later one reads: these texts never change."""
    full = '{"event":"label-draw","law":{"epsilon":1.0,"law":"rr","n_classes":10},"epsilon":1.0,'
    full += '"delta":0.0,"unit":"row","max_rows_per_unit":1}'
    kept = {
        full: 1.0,
        '{"event":"label-draw","law":{},"epsilon":0.5}': 0.5,
        (
            '{"event":"aggregate","query":{"query":"vote"},"epsilon":0.5,"delta":1e-06,'
            '"unit":"row","max_rows_per_unit":2}'
        ): (0.5),
    }
    for text, epsilon in kept.items():
        assert events.event_of(json.loads(text)).epsilon == epsilon
    assert DRAW.to_dict() == json.loads(full)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"event": "histogram", "epsilon": 1.0}, "histogram"),
        ({"event": "sequential", "events": [DRAW.to_dict()]}, "sequential"),
        ({"event": ["label-draw"]}, "label-draw"),
        ({"epsilon": 1.0}, "None"),
        ({**DRAW.to_dict(), "count": 10}, "count"),
        ({"event": "label-draw", "epsilon": 1.0}, "label-draw"),
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
        events.event_of(data)
