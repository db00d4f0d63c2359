# SPDX-License-Identifier: Apache-2.0
"""Datasets of the tests."""


class Rows:
    """A Dataset of rows."""

    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i]
