# SPDX-License-Identifier: Apache-2.0
"""Mechanisms that look at many labels at once: what groups of rows look like, not what each row's label is."""
