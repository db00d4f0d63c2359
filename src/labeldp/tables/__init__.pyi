# SPDX-License-Identifier: Apache-2.0
from ._evidence import read_histogram as read_histogram
from ._evidence import read_noisy as read_noisy
from ._place import Place as Place
from ._priors import PriorTable as PriorTable
from ._spec import ReleaseSpec as ReleaseSpec
