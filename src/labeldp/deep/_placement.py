# SPDX-License-Identifier: Apache-2.0
"""Where a net is trained: on one device with plain torch, or where lightning's Fabric says, in one process or in many.

In many processes each takes its share of every batch, so that the batches are those of one process; gradients, losses and scores are
those of whole batches, and the same everywhere. Fabric is handed in: nothing here imports lightning.
"""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from labeldp.deep._losses import Form
from labeldp.errors import InvalidInput, LabelDPError

Precision = Literal["auto", "float32", "bf16"]


class Placement:
    """One process, one device, plain torch.

    Parameters
    ----------
    device : torch.device or str
    precision : {"auto", "float32", "bf16"}

    Attributes
    ----------
    device : torch.device
    rank, world : int
        This process among how many.
    """

    rank, world = 0, 1

    def __init__(self, device: torch.device | str, precision: Precision) -> None:
        self.device, self._precision = torch.device(device), precision

    def setup(self, module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Any]:
        """What is called for logits, and what makes steps."""
        return module, optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        """The context in which the net is called."""
        return autocast(self.device, self._precision)

    def generators(self, generator: torch.Generator) -> tuple[torch.Generator, torch.Generator]:
        """Of the order of rows, equal in all processes, and of augmentation, different in each."""
        return generator, generator

    def backward(self, loss: Tensor) -> None:
        """Gradients of a process's share of a loss."""
        loss.backward()

    def clip(self, module: nn.Module, optimizer: Any, norm: float) -> None:
        """Limit the norm of the whole batch's gradient."""
        nn.utils.clip_grad_norm_(module.parameters(), norm)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, to the bit the same in each."""
        return value

    def unite(self, module: nn.Module) -> None:
        """Make what each process has counted by itself, such as batch statistics, the mean of all."""

    def require_same(self, evidence: Form | Tensor) -> None:
        """Refuse processes that learn from different outputs, or from the same ones in another order."""


class FabricPlacement(Placement):
    """Device, precision and distribution of a `lightning.fabric.Fabric` that was launched.

    Parameters
    ----------
    fabric : lightning.fabric.Fabric
        One whose every process holds the whole net: one device, or data-parallel ("ddp").
    """

    def __init__(self, fabric: Any) -> None:
        strategy = type(fabric.strategy).__name__
        if fabric.world_size > 1 and strategy != "DDPStrategy":
            raise InvalidInput(f"Expected processes that each hold the whole net, got {strategy}. Make it Fabric(strategy='ddp', ...).")
        self._fabric, self.device = fabric, fabric.device
        self.rank, self.world = int(fabric.global_rank), int(fabric.world_size)

    def setup(self, module: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Any]:
        net, steps = self._fabric.setup(module, optimizer)
        return net, steps

    def autocast(self) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = self._fabric.autocast()
        return found

    def generators(self, generator: torch.Generator) -> tuple[torch.Generator, torch.Generator]:
        if self.world == 1:
            return generator, generator
        generator.set_state(self._fabric.broadcast(generator.get_state(), src=0))  # whatever seeds the processes gave
        own = torch.Generator()
        seed = int(torch.randint(0, 2**62, (1,), generator=own.set_state(generator.get_state())))
        return generator, own.manual_seed(seed + self.rank)

    def backward(self, loss: Tensor) -> None:
        self._fabric.backward(loss)

    def clip(self, module: nn.Module, optimizer: Any, norm: float) -> None:
        self._fabric.clip_gradients(module, optimizer, max_norm=norm, error_if_nonfinite=False)

    def total(self, value: Tensor) -> Tensor:
        return value if self.world == 1 else self._fabric.all_reduce(value, reduce_op="sum")

    def unite(self, module: nn.Module) -> None:
        for buffer in module.buffers() if self.world > 1 else ():
            if buffer.is_floating_point():
                buffer.copy_(self.total(buffer.clone()) / self.world)

    def require_same(self, evidence: Form | Tensor) -> None:
        if self.world == 1:
            return
        mine = torch.frombuffer(bytearray(_digest(evidence)), dtype=torch.uint8).to(self.device)
        every = self._fabric.all_gather(mine).reshape(self.world, -1)
        if not bool((every == mine).all()):  # then it is so in every process, and all of them stop
            raise InvalidInput(
                "Expected the same evidence in every process, got different ones. Draw labels once, in one process, and give all the same "
                "saved NoisyLabels: two draws of a label would also cost twice."
            )


def share(rows: Tensor, rank: int, world: int) -> tuple[Tensor, float]:
    """A process's part of a batch, and the weight of its mean loss, so that the mean over processes is the mean over the batch.

    Parameters
    ----------
    rows : (m,) tensor
    rank, world : int

    Returns
    -------
    Rows, at least two wherever the batch has two, since batch normalisation knows no variance of one; and their number x world / m.
    Processes for which a small batch has none left take rows of others, at weight 0: they must take part in every step.
    """
    if world == 1:
        return rows, 1.0
    parts = rows.tensor_split(max(1, min(world, len(rows) // 2)))
    return (parts[rank], len(parts[rank]) * world / len(rows)) if rank < len(parts) else (parts[0], 0.0)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """bf16 where it is asked for, or multiplied natively.

    Parameters
    ----------
    device : torch.device
    precision : {"auto", "float32", "bf16"}
    """
    wanted = precision == "bf16" or (precision == "auto" and _has_bf16(device.type))
    return torch.autocast(device.type, torch.bfloat16) if wanted else nullcontext()


def _has_bf16(kind: str) -> bool:
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return kind == "cpu" and bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _digest(evidence: Form | Tensor) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for tensor in evidence.tensors if isinstance(evidence, Form) else (evidence,):
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


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
