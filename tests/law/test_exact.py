# SPDX-License-Identifier: Apache-2.0
"""Certified bounds: checked against mpmath-free identities and the next double on either side."""

import math
from decimal import Decimal, getcontext, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.errors import InvalidInput
from labeldp.laws.exact import exp_ceil, exp_floor, log_ceil, log_floor, log_ratio

EPSILONS = st.floats(1e-9, 700)


def true_exp(x: float) -> Fraction:
    with localcontext() as context:
        context.prec, context.Emax = 120, 10**6
        return Fraction(Decimal(x).exp())


@given(EPSILONS)
def test_exp_is_bracketed_tightly(x: float) -> None:
    truth = true_exp(x)
    assert exp_floor(x) < truth < exp_ceil(x)
    assert exp_ceil(x) - exp_floor(x) < truth / 10**57


@given(st.fractions(Fraction(1, 10**6), 10**6))
def test_log_is_the_next_double_above(x: Fraction) -> None:
    up = log_ceil(x)
    with localcontext() as context:
        context.prec = 100
        truth = (Decimal(x.numerator) / Decimal(x.denominator)).ln()
    assert Decimal(up) >= truth or x == 1
    assert Decimal(math.nextafter(up, -math.inf)) < truth + Decimal(10) ** -50
    assert log_floor(x) <= up <= math.nextafter(math.nextafter(log_floor(x), math.inf), math.inf)


def test_epsilon_beyond_700_counts_as_700_below_and_is_refused_above() -> None:
    assert exp_floor(1e300) == exp_floor(700.0)
    with pytest.raises(InvalidInput, match="700"):
        exp_ceil(701.0)


def test_the_callers_decimal_context_does_not_matter() -> None:
    exp_floor.cache_clear()
    before = exp_floor(1.25)
    exp_floor.cache_clear()
    with localcontext() as context:
        context.prec = 3
        assert exp_floor(1.25) == before
    assert getcontext().prec == 28


@given(st.integers(1, 2**64), st.integers(1, 2**64))
def test_log_ratio(a: int, b: int) -> None:
    with localcontext() as context:
        context.prec = 60
        truth = float((Decimal(a) / Decimal(b)).ln())
    assert log_ratio(a, b) == pytest.approx(truth, rel=1e-12, abs=1e-300)
