# SPDX-License-Identifier: Apache-2.0
"""Certified bounds: checked against mpmath-free identities and the next double on either side."""

import math
from decimal import Decimal, getcontext, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labeldp.laws import Law, RandomizedResponse, SubsetSelection
from labeldp.laws._base import worst_ratio
from labeldp.laws._exact import exp_floor, log_ceil, log_ratio

EPSILONS = st.floats(1e-9, 700)


def true_exp(x: float | Decimal) -> Fraction:
    with localcontext() as context:
        context.prec, context.Emax = 120, 10**6
        return Fraction(Decimal(x).exp())


@given(EPSILONS)
def test_exp_is_bracketed_tightly(x: float) -> None:
    claimed = true_exp(min(Decimal(x), Decimal(repr(x))))
    assert claimed * (1 - Fraction(1, 10**57)) < exp_floor(x) < claimed <= true_exp(x)


@pytest.mark.parametrize(
    "law", [RandomizedResponse(2, 0.1), RandomizedResponse(10, 0.3), SubsetSelection(12, 0.1)]
)
def test_a_claim_of_a_tenth_holds_as_one_tenth(law: Law) -> None:
    """The float 0.1 is above one tenth, by more than 64-bit words can tell apart; ledgers add up
    tenths."""
    assert worst_ratio(law.profile({})) < true_exp(Decimal(repr(law.epsilon)))


@given(st.fractions(Fraction(1, 10**6), 10**6))
def test_log_is_the_next_double_above(x: Fraction) -> None:
    up = log_ceil(x)
    with localcontext() as context:
        context.prec = 100
        truth = (Decimal(x.numerator) / Decimal(x.denominator)).ln()
    assert Decimal(up) >= truth or x == 1
    assert Decimal(math.nextafter(up, -math.inf)) < truth + Decimal(10) ** -50
    below = -log_ceil(1 / x)
    assert below <= up <= math.nextafter(math.nextafter(below, math.inf), math.inf)


def test_epsilon_beyond_700_counts_as_700() -> None:
    assert exp_floor(1e300) == exp_floor(700.0)


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
