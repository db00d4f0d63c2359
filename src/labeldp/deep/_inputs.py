# SPDX-License-Identifier: Apache-2.0
"""Inputs of a training: whole on the device, or read from a Dataset as they are needed; in the order that the loop asks for.

Who reads says which rows, as positions, and evidence is taken from the same positions: no order of a Dataset, a DataLoader or its workers
can bring an input together with another row's label.
"""

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, Subset, TensorDataset
from torch.utils.data.dataloader import default_collate
from torch.utils.data.distributed import DistributedSampler

from labeldp import _validate
from labeldp.deep._data import MapDataset, first_look, first_part, require_id, require_positions, still_there, warn_unwatched
from labeldp.errors import InvalidInput

Features = Callable[[Any], Any]

_SHARE = 0.5  # of a device's free memory for inputs: the rest is for the net and its activations


class Inputs(ABC):
    """n inputs that can be read by their positions. Make one with `as_inputs`, or write one: two methods are enough."""

    @abstractmethod
    def __len__(self) -> int:
        """n."""

    @abstractmethod
    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        """One tensor (m, ...) for each (m,) int64 tensor of positions, in that order; on any device.

        Parameters
        ----------
        rows : iterable of (m,) int64 tensors on the CPU
        """

    def on(self, device: torch.device | str, layout: torch.memory_format = torch.preserve_format) -> "Inputs":
        """The same inputs, on the device if they fit and can be kept there.

        Parameters
        ----------
        device : torch.device or str
        layout : torch.memory_format
        """
        return self

    def take(self, rows: Tensor) -> "Inputs":
        """The inputs at these positions, in that order.

        Parameters
        ----------
        rows : (m,) int64 tensor
        """
        return _Part(self, rows)

    @property
    def steady(self) -> bool:
        """Whether a row is the same each time it is read, as far as is known; random transforms are not."""
        return True

    @property
    def ndim(self) -> int:
        """Axes of a batch: 4 for images."""
        return int(next(self.batches([torch.zeros(1, dtype=torch.int64)])).ndim)


class Resident(Inputs):
    """A tensor, kept whole: in `batches` rows are picked where it lies.

    Parameters
    ----------
    tensor : (n, ...) tensor
        Of any type; images of uint8 stay so and are scaled to 0..1 batch by batch, so that they take a byte a pixel.
    """

    def __init__(self, tensor: Tensor) -> None:
        if not tensor.ndim:
            raise InvalidInput("Expected inputs with an axis of rows, got a single number. Give a tensor (n, ...).")
        self.tensor, self._pinned = tensor, False

    def __len__(self) -> int:
        return len(self.tensor)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        for chosen in rows:
            batch = self.tensor[chosen.to(self.tensor.device, non_blocking=True)]
            yield batch.pin_memory() if self._pinned else batch

    def on(self, device: torch.device | str, layout: torch.memory_format = torch.preserve_format) -> "Resident":
        """On the device, if that leaves half of its free memory for the net; else where it is, and batches are sent one by one."""
        device, size = torch.device(device), self.tensor.numel() * self.tensor.element_size()
        there = self.tensor.device.type == device.type and device.index in (None, self.tensor.device.index)
        room = None if there else _room(device)
        if room is None or size <= _SHARE * room:
            return type(self)(self.tensor.to(device, memory_format=layout))
        kept = type(self)(self.tensor)
        kept._pinned = device.type == "cuda" and self.tensor.device.type == "cpu"  # so that the next batch is sent while this one is used
        return kept

    def take(self, rows: Tensor) -> "Resident":
        return type(self)(self.tensor[rows.to(self.tensor.device)])

    @property
    def ndim(self) -> int:
        return int(self.tensor.ndim)


class Streamed(Inputs):
    """A map-style Dataset that is read as it is needed, by worker processes if asked, over batches that the loop chose.

    Parameters
    ----------
    dataset : map-style Dataset
        Its sampler, if it had one, counts for nothing: row i is the item at position i.
    features : function of an item, optional
        What of an item is x. By default the first part of a tuple or list, which leaves labels behind, or the item itself.
    workers : int
    collate : function of a list of items, optional
        Makes a batch, whose x is then taken as from an item. By default `features` first, then torch's own.
    watch : bool
        Whether some items are looked at now, so that a change of the dataset's order or content stops the training later. Where they differ
        each time they are read, a warning says that nothing can be watched.
    id_of : function of an item, optional
        The id that an item carries: then every item that is read is checked by it, and not by its content.
    ids : (n,) or (n, columns) array, optional
        The id of each item with `id_of`; its position by default.
    **options
        Others of DataLoader: `pin_memory`, `prefetch_factor`, `worker_init_fn`, `timeout`, `multiprocessing_context`.

    Raises
    ------
    InvalidInput
        When reading: an item that is not the one that stood at its position, a batch that is not a tensor.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        features: Features | None = None,
        workers: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        watch: bool = True,
        id_of: Callable[[Any], object] | None = None,
        ids: Any = None,
        **options: Any,
    ) -> None:
        require_positions(dataset)
        chosen = features or first_part
        looks = watch and len(dataset) > 0
        self.names = None if id_of is None else _names(ids, len(dataset))
        self.dataset, self.marks = dataset, first_look(lambda i: chosen(dataset[i]), len(dataset)) if looks else {}
        if looks and id_of is None and not self.marks and not _watches_itself(dataset):
            warn_unwatched()
        watched = self.marks if id_of is None else {}
        self._items, self._collate = _Items(dataset, chosen, watched, id_of, self.names), _Collate(chosen, collate)
        self.workers, self._passes = _validate.integer(workers=workers, low=0), 0
        self.options = {"pin_memory": True, **options}
        self.options["pin_memory"] &= torch.accelerator.is_available()  # torch warns where there is nothing to pin for

    def __len__(self) -> int:
        return len(self._items)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        wanted = [chosen.tolist() for chosen in rows]
        self._passes += 1
        own = torch.Generator().manual_seed((torch.initial_seed() + self._passes) % 2**63)  # DataLoader would draw from dropout's
        loader: DataLoader[Any] = DataLoader(
            self._items, batch_sampler=wanted, collate_fn=self._collate, num_workers=self.workers, generator=own, **self.options
        )
        for asked, (found, x) in zip(wanted, loader, strict=True):
            if asked != found:
                raise InvalidInput("Expected batches in the order that was asked for, got another. Do not change the DataLoader's order.")
            yield x

    @property
    def steady(self) -> bool:
        return bool(self.marks)

    @property
    def ndim(self) -> int:
        return int(self._collate([self._items[0]])[1].ndim)


class _Part(Inputs):
    """Some positions of other inputs."""

    def __init__(self, whole: Inputs, rows: Tensor) -> None:
        self._whole, self._rows = whole, rows.cpu()

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        return self._whole.batches([self._rows[chosen] for chosen in rows])

    def on(self, device: torch.device | str, layout: torch.memory_format = torch.preserve_format) -> "Inputs":
        return _Part(self._whole.on(device, layout), self._rows)

    def take(self, rows: Tensor) -> "Inputs":
        return _Part(self._whole, self._rows[rows.cpu()])

    @property
    def steady(self) -> bool:
        return self._whole.steady

    @property
    def ndim(self) -> int:
        return self._whole.ndim


def as_inputs(
    X: Any, *, features: Features | None = None, watch: bool = True, id_of: Callable[[Any], object] | None = None, ids: Any = None
) -> Inputs:
    """Inputs of what people have.

    Parameters
    ----------
    X : (n, ...) array or tensor, map-style Dataset, DataLoader, or Inputs
        Of a Dataset's items that are tuples or lists, the first part is x. Of a DataLoader the dataset is taken with its collate function,
        workers and memory pinning, and never its order or its batches.
    features : function of an item, optional
        What of a Dataset's item is x.
    watch : bool
        Of a Dataset: whether its order is watched; see `Streamed`.
    id_of : function of an item, optional
        The id that an item of a Dataset carries, by which each one that is read is checked.
    ids : (n,) or (n, columns) array, optional
        What `id_of` is to give of each item; its position by default.

    Returns
    -------
    Resident for arrays, tensors and TensorDatasets, Streamed for others, and with `id_of`.

    Raises
    ------
    InvalidInput
        A stream, which has no positions; a DataLoader whose sampler may leave rows out; an array of objects.
    """
    named: dict[str, Any] = {} if id_of is None else {"id_of": id_of, "ids": ids}
    if named and not isinstance(X, DataLoader) and not _is_dataset(X):
        raise InvalidInput(f"Expected a Dataset with id_of=, got {type(X).__name__}, which has no items to ask. Leave id_of= out.")
    if isinstance(X, Inputs):
        return X
    if isinstance(X, Tensor):
        return Resident(X)
    if isinstance(X, DataLoader):
        return _of_loader(X, features, watch, named)
    if isinstance(X, TensorDataset) and features is None and not named:
        return Resident(X.tensors[0])
    if isinstance(X, Mapping):
        raise InvalidInput(f"Expected an array, a Dataset or a DataLoader, got {type(X).__name__}. Make a Dataset with an item a row.")
    if _is_dataset(X):
        return Streamed(X, features=features, watch=watch, **named)
    return Resident(_from_array(np.asarray(X)))


def _is_dataset(X: Any) -> bool:
    plain = isinstance(X, Inputs | Tensor | Mapping | list | tuple) or hasattr(X, "__array__")
    return isinstance(X, Dataset) or (hasattr(X, "__getitem__") and not plain)


def _watches_itself(dataset: Any) -> bool:
    """A dataset with evidence, which has said by itself where nothing is watched."""
    return _watches_itself(dataset.dataset) if isinstance(dataset, Subset) else hasattr(dataset, "watched_by")


def _names(ids: Any, n: int) -> "np.ndarray[Any, Any]":
    names = np.arange(n) if ids is None else np.asarray(ids)
    if len(names) != n:
        raise InvalidInput(f"Expected one id an item, got {len(names)} ids for {n} items. Pass ids in the order of the dataset.")
    return names


class _Items(Dataset[tuple[int, Any]]):
    """(position, item) of a dataset, so that what comes back from a worker says what it is."""

    def __init__(
        self,
        dataset: MapDataset,
        features: Features,
        marks: Mapping[int, bytes],
        id_of: Callable[[Any], object] | None,
        names: "np.ndarray[Any, Any] | None",
    ) -> None:
        self._dataset, self._features, self._marks, self._id_of, self._names = dataset, features, marks, id_of, names

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> tuple[int, Any]:
        return self.__getitems__([i])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[int, Any]]:
        several = getattr(self._dataset, "__getitems__", None)
        items = several(rows) if several is not None else [self._dataset[i] for i in rows]
        found = list(zip(rows, items, strict=True))
        for i, item in found:
            self._require_same(i, item)
        return found

    def _require_same(self, i: int, item: Any) -> None:
        if self._id_of is not None and self._names is not None:
            require_id(self._names[i], self._id_of(item), i)
        if i in self._marks and not still_there(self._marks[i], self._features(item), lambda: self._features(self._dataset[i])):
            raise InvalidInput(
                f"Expected the item that stood at position {i} when the inputs were made, got another one: the dataset's order or "
                "content has changed, so that items would be trained with other rows' labels. Fix the dataset's order, or pass id_of= so "
                "that each item names itself."
            )


class _Collate:
    """Positions and x of a batch; an object, so that workers started afresh can be sent it."""

    def __init__(self, features: Features, own: Callable[[list[Any]], Any] | None) -> None:
        self._features, self._own = features, own

    def __call__(self, found: list[tuple[int, Any]]) -> tuple[list[int], Tensor]:
        rows, items = [i for i, _ in found], [item for _, item in found]
        try:
            x = default_collate([self._features(item) for item in items]) if self._own is None else self._features(self._own(items))
        except (TypeError, RuntimeError) as error:  # torch's own message does not say what to do
            raise InvalidInput(f"Expected items that make a tensor, got others ({error}). {_MAKE_TENSORS}") from error
        if not isinstance(x, Tensor) or len(x) != len(rows):
            raise InvalidInput(f"Expected a batch as one tensor of {len(rows)} rows, got {type(x).__name__}. {_MAKE_TENSORS}")
        return rows, x


_MAKE_TENSORS = "Give the dataset a transform to tensors of one shape, pass features=, or a DataLoader with a collate_fn."


def _of_loader(loader: "DataLoader[Any]", features: Features | None, watch: bool, named: Mapping[str, Any]) -> Inputs:
    dataset: Any = loader.dataset
    require_positions(dataset)
    if type(loader.batch_sampler) is not BatchSampler or not isinstance(
        loader.sampler, SequentialSampler | RandomSampler | DistributedSampler
    ):
        raise InvalidInput(
            f"Expected a DataLoader over all rows in batches, got one with {type(loader.batch_sampler or loader.sampler).__name__}, which "
            "may leave rows out. Pass the Dataset, or torch.utils.data.Subset(dataset, rows): the loop makes the batches."
        )
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    if collate is None and features is None and not named and isinstance(dataset, TensorDataset):
        return Resident(dataset.tensors[0])
    names = ("pin_memory", "prefetch_factor", "worker_init_fn", "timeout", "multiprocessing_context")
    options = {name: getattr(loader, name) for name in names}
    return Streamed(dataset, features=features, workers=loader.num_workers, collate=collate, watch=watch, **named, **options)


def _from_array(array: "np.ndarray[Any, Any]") -> Tensor:
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"Expected an array of numbers, got dtype {array.dtype}. Encode the columns as numbers first.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nothing here writes into inputs
        return torch.from_numpy(np.ascontiguousarray(array))


def _room(device: torch.device) -> int | None:
    """Free bytes of a GPU; None where inputs are in the same memory anyway, or nobody knows."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


_CHECKED = 1 << 24  # numbers looked at together
_ROWS = 1024  # read together


def inputs_of(X: Any, *, watch: bool = True, id_of: Callable[[Any], object] | None = None, ids: Any = None) -> Inputs:
    """The inputs as users have them: an array, a tensor, a map-style Dataset of items x or (x, ...), a DataLoader of one, or Inputs.

    Parameters
    ----------
    X : such inputs
    watch, id_of, ids : as in `as_inputs`

    Raises
    ------
    InvalidInput
        Anything else; no rows; an array or tensor with numbers that are not finite.
    """
    inputs = as_inputs(X, watch=watch, id_of=id_of, ids=ids)
    if not len(inputs):
        raise InvalidInput("Expected X of at least one row, got none.")
    if not isinstance(inputs, Resident):
        return inputs
    values = inputs.tensor.detach()
    if values.is_floating_point():
        _require_finite(values)
    return Resident(_single(values))


def inputs_digest(inputs: Inputs) -> str:
    """SHA-256 of all inputs, by which a repeat of a fit without ids is recognised; a Dataset is read once for it.

    The same rows have the same digest in an array, a tensor or a Dataset.

    Raises
    ------
    InvalidInput
        A Dataset whose items differ each time they are read; numbers that are not finite.
    """
    if not inputs.steady:
        raise InvalidInput(
            "Expected ids= with a Dataset whose items differ each time they are read, as random transforms do: without ids nobody could "
            "tell whether these rows were drawn before. Pass ids=, or augment in the recipe."
        )
    state = hashlib.sha256()
    for number, x in enumerate(inputs.batches(torch.arange(len(inputs)).split(_ROWS))):
        values = _single(x)
        if values.is_floating_point():
            _require_finite(values)
        if not number:
            state.update(f"{values.dtype}:{(len(inputs), *values.shape[1:])};".encode())
        state.update(values.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def inputs_name(inputs: Inputs, digest: Callable[[], str] | None = None) -> str:
    """What a folder knows inputs by: their digest, for which a Dataset is read once; their number alone where items are random.

    Parameters
    ----------
    inputs : Inputs
    digest : function, optional
        Gives the digest, where it is wanted elsewhere too.
    """
    if not inputs.steady:
        return f"{len(inputs)} rows that differ each time they are read"
    return inputs_digest(inputs) if digest is None else digest()


def _single(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float64, torch.bool) else values


def _require_finite(values: Tensor) -> None:
    flat = values.reshape(-1)
    for start in range(0, len(flat), _CHECKED):
        if not bool(torch.isfinite(flat[start : start + _CHECKED]).all()):
            raise InvalidInput("Expected finite inputs, got NaN or infinity in X. Fill or drop them.")
