# SPDX-License-Identifier: Apache-2.0
"""The source papers, one module each, in their own words and built on the library's parts. Nothing
else in the package imports them.

labeldp.papers.ghazi2021        Deep Learning with Label Differential Privacy
labeldp.papers.malek2021        Antipodes of Label Differential Privacy: PATE and ALIBI
labeldp.papers.tang2022         Machine Learning with Differentially Private Labels: Mechanisms and
                                Frameworks
labeldp.papers.esfandiari2022   Label differential privacy via clustering
labeldp.papers.regression       published laws for numbers that are baselines here

`docs/papers.md` names each algorithm, table and figure, with what was measured and what does not
hold as printed. Names that need torch (extra `torch`) are imported at first use.
"""
