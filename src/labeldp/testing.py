# SPDX-License-Identifier: Apache-2.0
"""For tests: the contract of a law, `check_law(law)`, with words that are no secret; and estimators
on plain labels of public data, `PlainLabels`."""

from labeldp.laws._check import FALSE_ALARM as FALSE_ALARM
from labeldp.laws._check import CounterWords as CounterWords
from labeldp.laws._check import check_law as check_law
from labeldp.learn._plain import PlainLabels as PlainLabels
