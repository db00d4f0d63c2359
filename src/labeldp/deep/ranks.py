# SPDX-License-Identifier: Apache-2.0
"""Several processes of one training (torchrun): the first one does what must happen once, the others get what came of it."""

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

from labeldp.errors import LabelDPError

Result = TypeVar("Result")


def is_first() -> bool:
    """True in the process that opens runs and writes files; there is no other where nothing is distributed."""
    return not distributed() or dist.get_rank() == 0


def from_first(make: Callable[[], Result]) -> Result:
    """What `make` gives in the first process, in every process; an error there is raised in all, so that none waits in vain.

    Of an error that is not labeldp's the others get the type alone: its text might show what only the first process may read.

    Parameters
    ----------
    make : function without arguments
        Called in the first process only. What it gives is pickled, so it must hold nothing secret.
    """
    if not distributed():
        return make()
    box: list[object] = [None, None]
    if is_first():
        try:
            box[0] = make()
        except LabelDPError as error:
            box[1] = error
        except Exception as error:
            box[1] = LabelDPError(f"Expected the first process to go on, but it has stopped with {type(error).__name__}. See what it says.")
            dist.broadcast_object_list(box, src=0)
            raise
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[1], LabelDPError):
        raise box[1]
    return cast(Result, box[0])


def distributed() -> bool:
    """Whether there are other processes."""
    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
