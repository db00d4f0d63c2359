# SPDX-License-Identifier: Apache-2.0
"""Several processes of one training (torchrun): the first one does what must happen once, the others get what came of it."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

from labeldp.errors import LabelDPError

Result = TypeVar("Result")


def is_first() -> bool:
    """True in the process that opens runs and writes files; there is no other where nothing is distributed."""
    return not _distributed() or dist.get_rank() == 0


def from_first(make: Callable[[], Result]) -> Result:
    """What `make` gives in the first process, in every process; an error of labeldp's there is raised in all, so that none waits in vain.

    Parameters
    ----------
    make : function without arguments
        Called in the first process only. What it gives is pickled, so it must hold nothing secret.
    """
    if not _distributed():
        return make()
    box: list[object] = [None, None]
    if is_first():
        try:
            box[0] = make()
        except LabelDPError as error:
            box[1] = error
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[1], LabelDPError):
        raise box[1]
    return cast(Result, box[0])


def _distributed() -> bool:
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
