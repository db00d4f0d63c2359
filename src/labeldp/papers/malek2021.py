# SPDX-License-Identifier: Apache-2.0
"""Malek, Mironov, Prasad, Shilov and Tramer, "Antipodes of Label Differential Privacy: PATE and
ALIBI" (NeurIPS 2021).

ALIBI   `Alibi`, the law: Laplace noise on the one-hot label; `alibi`, the recipe that learns
PATE    `PATEClassifier`: teachers on shards of the rows, and a student; `plan_teachers`: how many.
        `ConfidentGNMax`, the query: noisy votes where enough teachers agree, and its account

With a net that learns by FixMatch as the teacher it is PATE-FM: `labeldp.papers.tang2022`.
"""

from labeldp.papers._alibi import Alibi
from labeldp.papers._gnmax import ConfidentGNMax
from labeldp.papers._pate import PATEClassifier, TeacherCounts, plan_teachers
from labeldp.papers._recipes import alibi

__all__ = ["Alibi", "ConfidentGNMax", "PATEClassifier", "TeacherCounts", "alibi", "plan_teachers"]
