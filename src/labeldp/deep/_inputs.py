# SPDX-License-Identifier: Apache-2.0
"""Inputs of a training, and the match between inputs and noisy labels.

    Inputs             n inputs that are read by position: in one tensor (Resident), or from a
                       Dataset when needed (Streamed)
    with_evidence      a Dataset whose items carry the evidence of their own row, matched by id
    together           inputs and noisy labels of the same rows, for an estimator

The training loop asks for rows by position, and takes evidence from the same positions. So the
order of a Dataset, a DataLoader or its workers cannot pair an input with another row's label. A
Dataset whose order changes between two readings is detected by the ids that its items carry, or by
the content of some items.
"""

import hashlib
import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch.utils.data.dataloader import default_collate
from torch.utils.data.distributed import DistributedSampler

from labeldp import _validate
from labeldp._hash import exact_array
from labeldp.custody._encode import index_of, is_closed, require_same_order
from labeldp.deep._losses import Shape, evidence_of, require_noisy
from labeldp.errors import InvalidInput, LabelDPWarning
from labeldp.evidence import NoisyLabels
from labeldp.protocol._matching import (
    check_count,
    in_order,
    matched_by_id,
    positions_of,
    require_public_beside,
    require_same_rows,
    same_index,
    warn_of_order,
)

Features = Callable[[Any], Any]

# share of a device's free memory for inputs; the rest is for the net and its activations
_SHARE = 0.5
_NARROW = 32  # columns of a table, at most, each of which may be codes of its own
_CHECKED = 1 << 24  # numbers checked at a time
_ROWS = 1024  # rows read at a time


class MapDataset(Protocol):
    """A map-style Dataset, in torch's terms: one with positions."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Inputs(ABC):
    """Inputs of n rows that are read by position.

    Make them with `as_inputs`, or subclass this for your own data: `__len__` and `batches` are
    enough.

    See Also
    --------
    Resident, Streamed : inputs in one tensor, and inputs read from a Dataset when needed.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield one tensor (m, ...) for each (m,) int64 tensor of positions, in that order; on any
        device.

        Parameters
        ----------
        rows : iterable of (m,) int64 tensors on the CPU
        """

    def on(
        self, device: torch.device | str, layout: torch.memory_format = torch.preserve_format
    ) -> "Inputs":
        """Move the inputs to a device if they fit; otherwise they stay, and batches are sent.

        Parameters
        ----------
        device : torch.device or str
        layout : torch.memory_format, default=torch.preserve_format
        """
        return self

    def take(self, rows: Tensor) -> "Inputs":
        """Return the inputs at these positions, in that order.

        Parameters
        ----------
        rows : (m,) int64 tensor
        """
        return _Part(self, rows)

    def telling(self) -> Tensor:
        """Return the positions of a few rows on which a net is tried before a charge."""
        return torch.arange(min(2, len(self)))

    @property
    def steady(self) -> bool:
        """Whether a row is the same at each reading; False for random transforms, as far as these
        are detected."""
        return True

    @property
    def ndim(self) -> int:
        """Number of axes of a batch: 4 for images."""
        return int(next(self.batches([torch.zeros(1, dtype=torch.int64)])).ndim)


class Resident(Inputs):
    """Inputs in one tensor on one device, from which batches are indexed.

    Parameters
    ----------
    tensor : (n, ...) tensor
        Of any type. Images of uint8 are scaled to [0, 1] batch by batch, so that they take one byte
        per pixel.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self._pinned = tensor, False

    def __len__(self) -> int:
        return len(self.tensor)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        if self.tensor.device.type == "cpu" and not self._pinned:
            # the fast path: no Python code of ours between two steps
            return map(self.tensor.__getitem__, rows)
        return map(self._sent, rows)

    def _sent(self, rows: Tensor) -> Tensor:
        batch = self.tensor[rows.to(self.tensor.device, non_blocking=True)]
        return batch.pin_memory() if self._pinned else batch

    def on(
        self, device: torch.device | str, layout: torch.memory_format = torch.preserve_format
    ) -> "Resident":
        """Move to the device if that leaves half of its free memory for the net; else stay, and
        send batches one by one."""
        device, size = torch.device(device), self.tensor.numel() * self.tensor.element_size()
        there = self.tensor.device.type == device.type and device.index in (
            None,
            self.tensor.device.index,
        )
        room = None if there else _room(device)
        if room is None or size <= _SHARE * room:
            return type(self)(self.tensor.to(device, memory_format=layout))
        kept = type(self)(self.tensor)
        # pinned memory is copied while the GPU computes
        kept._pinned = device.type == "cuda" and self.tensor.device.type == "cpu"
        return kept

    def take(self, rows: Tensor) -> "Resident":
        return type(self)(self.tensor[rows.to(self.tensor.device)])

    def telling(self) -> Tensor:
        """Return the rows with the largest and the least number, of a narrow table in each column,
        and the first ones.

        A code without an embedding, or a pixel of another scale, is so found before the charge, in
        whatever row it is.
        """
        values, first = self.tensor, super().telling()
        axes = tuple(range(1, values.ndim))
        try:
            narrow = values.ndim == 1 or (values.ndim == 2 and values.shape[1] <= _NARROW)
            high, low = (values, values) if narrow else (values.amax(axes), values.amin(axes))
            found = torch.stack([high.argmax(0), low.argmin(0)]).flatten().cpu()
        # of numbers that torch does not order, or rows without any
        except (RuntimeError, IndexError):
            return first
        return torch.tensor(list(dict.fromkeys([*found.tolist(), *first.tolist()])))


class Streamed(Inputs):
    """Inputs in a map-style Dataset, read when needed, optionally by worker processes, in the
    batches that the loop asks for.

    Parameters
    ----------
    dataset : map-style Dataset
        Row i is the item at position i, whatever sampler it was used with.
    features : function of an item, optional
        Returns an item's input x. By default the first part of a tuple or list, which leaves labels
        out, or the item itself.
    workers : int, default=0
    collate : function of a list of items, optional
        Makes a batch, to which `features` is then applied. By default `features` of each item, then
        torch's own collate function.
    watch : bool, default=True
        Whether some items are read now, so that a later change of the dataset's order or content
        stops the training. If they differ at each reading, a warning says that a change cannot be
        detected.
    id_of : function of an item, optional
        Returns an item's id. Every item that is read is then checked by its id instead of its
        content.
    ids : (n,) or (n, columns) array, optional
        The ids that `id_of` must return; positions by default.
    **options
        Further options of DataLoader: `pin_memory`, `prefetch_factor`, `worker_init_fn`, `timeout`,
        `multiprocessing_context`.

    Raises
    ------
    InvalidInput
        If an item that is looked at holds numbers that are not finite. When reading: if an item is
        not the one that was at its position before, or a batch is not a tensor.
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
        self.dataset, self.marks = (
            dataset,
            (_first_look(lambda i: _finite(chosen(dataset[i]), i), len(dataset)) if looks else {}),
        )
        if looks and id_of is None and not self.marks and not _watches_itself(dataset):
            _warn_unwatched()
        self._items = _Items(dataset, _Watch(dataset, chosen, id_of, self.names, self.marks))
        self._collate = _Collate(chosen, collate)
        self.workers, self._passes = _validate.integer(workers=workers, low=0), 0
        self.options = {"pin_memory": True, **options}
        # torch warns if there is no device to pin memory for
        self.options["pin_memory"] &= torch.accelerator.is_available()

    def __len__(self) -> int:
        return len(self._items)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        wanted = [chosen.tolist() for chosen in rows]
        self._passes += 1
        # A DataLoader with workers draws seeds from torch's global generator, which dropout uses,
        # too. With a generator of its own, the number of workers does not change a training's
        # result.
        own = torch.Generator().manual_seed((torch.initial_seed() + self._passes) % 2**63)
        loader: DataLoader[Any] = DataLoader(
            self._items,
            batch_sampler=wanted,
            collate_fn=self._collate,
            num_workers=self.workers,
            generator=own,
            **self.options,
        )
        for asked, (found, x) in zip(wanted, loader, strict=True):
            # evidence is taken by position, so another order would pair inputs with other rows'
            # labels
            if asked != found:
                raise InvalidInput(
                    "Expected batches in the order that was asked for, got another. Do not change"
                    " the DataLoader's order."
                )
            yield x

    @property
    def steady(self) -> bool:
        return bool(self.marks)

    @property
    def ndim(self) -> int:
        return int(self._collate([self._items[0]])[1].ndim)


class _Part(Inputs):
    """Selected rows of other inputs, without a copy."""

    def __init__(self, whole: Inputs, rows: Tensor) -> None:
        self._whole, self._rows = whole, rows.cpu()

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, rows: Iterable[Tensor]) -> Iterator[Tensor]:
        return self._whole.batches([self._rows[chosen] for chosen in rows])

    def on(
        self, device: torch.device | str, layout: torch.memory_format = torch.preserve_format
    ) -> "Inputs":
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
    X: Any,
    *,
    features: Features | None = None,
    watch: bool = True,
    id_of: Callable[[Any], object] | None = None,
    ids: Any = None,
) -> Inputs:
    """Make inputs of an array, a tensor, a Dataset or a DataLoader.

    Parameters
    ----------
    X : (n, ...) array or tensor, map-style Dataset, DataLoader, or Inputs
        If a Dataset's items are tuples or lists, the first part is x. A DataLoader's dataset,
        collate function, workers and memory pinning are used, but neither its order nor its
        batches.
    features : function of an item, optional
        Returns the input x of a Dataset's item.
    watch : bool, default=True
        Whether changes of a Dataset's order are detected; see `Streamed`.
    id_of : function of an item, optional
        Returns the id of a Dataset's item, by which each item that is read is checked.
    ids : (n,) or (n, columns) array, optional
        The ids that `id_of` must return; positions by default.

    Returns
    -------
    Inputs
        Resident for arrays, tensors and TensorDatasets without `id_of`; otherwise Streamed.

    Raises
    ------
    InvalidInput
        For a stream, which has no positions; a DataLoader whose sampler may leave rows out; an
        array of objects; or rows of several shapes.

    See Also
    --------
    with_evidence : the Dataset for your own training loop.
    """
    named: dict[str, Any] = {} if id_of is None else {"id_of": id_of, "ids": ids}
    if named and not isinstance(X, DataLoader) and not _is_dataset(X):
        raise InvalidInput(
            f"Expected a Dataset with id_of=, got {type(X).__name__}, which has no items to ask."
            " Leave id_of= out."
        )
    if isinstance(X, Inputs):
        return X
    if hasattr(X, "toarray") or (isinstance(X, Tensor) and X.layout != torch.strided):
        raise InvalidInput(
            f"Expected a dense array or tensor, got a sparse {type(X).__name__}. Pass X.toarray(),"
            " of a tensor X.to_dense()."
        )
    if isinstance(X, Tensor):
        return Resident(X)
    if isinstance(X, DataLoader):
        return _of_loader(X, features, watch, named)
    if isinstance(X, TensorDataset) and features is None and not named:
        return Resident(X.tensors[0])
    if _is_dataset(X):
        return Streamed(X, features=features, watch=watch, **named)
    return Resident(_from_array(X))


def _is_dataset(X: Any) -> bool:
    """Return whether X has items rather than numbers: a torch Dataset, or anything that is indexed
    like one."""
    plain = isinstance(X, Inputs | Tensor | Mapping | list | tuple) or hasattr(X, "__array__")
    return isinstance(X, Dataset) or (hasattr(X, "__getitem__") and not plain)


def _watches_itself(dataset: Any) -> bool:
    """Return whether this is a dataset with evidence, which has warned already if it cannot detect
    changes."""
    return (
        _watches_itself(dataset.dataset)
        if isinstance(dataset, Subset)
        else hasattr(dataset, "watched_by")
    )


def _names(ids: Any, n: int) -> NDArray[Any]:
    names = np.arange(n) if ids is None else np.asarray(ids)
    if len(names) != n:
        raise InvalidInput(
            f"Expected one id an item, got {len(names)} ids for {n} items. Pass ids in the order of"
            " the dataset."
        )
    return names


class _Items(Dataset[tuple[int, Any]]):
    """Pairs (position, item) of a dataset, so that an item from a worker says which row it is."""

    def __init__(self, dataset: MapDataset, watch: "_Watch") -> None:
        self._dataset, self._watch = dataset, watch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> tuple[int, Any]:
        return self.__getitems__([i])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[int, Any]]:
        # torch's protocol for datasets that read a batch at once
        several = getattr(self._dataset, "__getitems__", None)
        items = several(rows) if several is not None else [self._dataset[i] for i in rows]
        found = list(zip(rows, items, strict=True))
        for i, item in found:
            self._watch.require_same(i, item, i)
        return found


_MAKE_TENSORS = (
    "Give the dataset a transform to tensors of one shape, pass features=, or a DataLoader with a"
    " collate_fn."
)


class _Collate:
    """Makes (positions, x) from a batch's items. A class instead of a closure, since spawned
    workers get it pickled."""

    def __init__(self, features: Features, own: Callable[[list[Any]], Any] | None) -> None:
        self._features, self._own = features, own

    def __call__(self, found: list[tuple[int, Any]]) -> tuple[list[int], Tensor]:
        rows, items = [i for i, _ in found], [item for _, item in found]
        try:
            x = (
                default_collate([self._features(item) for item in items])
                if self._own is None
                else self._features(self._own(items))
            )
        except (TypeError, RuntimeError) as error:  # torch's own message does not say how to fix it
            raise InvalidInput(
                f"Expected items that make a tensor, got others ({error}). {_MAKE_TENSORS}"
            ) from error
        if not isinstance(x, Tensor) or len(x) != len(rows):
            raise InvalidInput(
                f"Expected a batch as one tensor of {len(rows)} rows, got {type(x).__name__}."
                f" {_MAKE_TENSORS}"
            )
        return rows, x


def _of_loader(
    loader: "DataLoader[Any]", features: Features | None, watch: bool, named: Mapping[str, Any]
) -> Inputs:
    """Make inputs of a loader's dataset, with its way of reading but not its order."""
    dataset: Any = loader.dataset
    require_positions(dataset)
    # A custom sampler may choose or repeat rows, by label or weight; to drop that choice silently
    # would train on other data.
    if type(loader.batch_sampler) is not BatchSampler or not isinstance(
        loader.sampler, SequentialSampler | RandomSampler | DistributedSampler
    ):
        # which every loader has that is given no other
        own = type(loader.batch_sampler) is BatchSampler
        name, part = ("sampler", loader.sampler) if own else ("batch_sampler", loader.batch_sampler)
        raise InvalidInput(
            "Expected a DataLoader over all rows in batches, got one with"
            f" {name}={'None' if part is None else type(part).__name__}, which may leave rows out."
            " Pass the Dataset, or torch.utils.data.Subset(dataset, rows): the loop makes the"
            " batches."
        )
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    if collate is None and features is None and not named and isinstance(dataset, TensorDataset):
        return Resident(dataset.tensors[0])
    names = (
        "pin_memory",
        "prefetch_factor",
        "worker_init_fn",
        "timeout",
        "multiprocessing_context",
    )
    options = {name: getattr(loader, name) for name in names}
    return Streamed(
        dataset,
        features=features,
        workers=loader.num_workers,
        collate=collate,
        watch=watch,
        **named,
        **options,
    )


def _from_array(X: Any) -> Tensor:
    _validate.unmasked(X=X)
    try:
        array = np.asarray(X)
    except ValueError:  # NumPy's word for rows of several shapes
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            f"Expected an array of numbers with rows of one shape, or a Dataset with an item a row,"
            f" got a {type(X).__name__} of {array.dtype}. Encode columns as numbers, and bring"
            " images to one size first, for example by a transform of their Dataset."
        )
    # torch has neither the other byte order nor more than double precision
    array = (
        array.astype(np.float64)
        if array.dtype.kind == "f" and array.itemsize > 8
        else array.astype(array.dtype.newbyteorder("="), copy=False)
    )
    with warnings.catch_warnings():
        # nothing here writes into inputs
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.ascontiguousarray(array))


def _room(device: torch.device) -> int | None:
    """Return the free bytes of a GPU; None for other devices, where the inputs are in the same
    memory anyway."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def inputs_of(
    X: Any, *, watch: bool = True, id_of: Callable[[Any], object] | None = None, ids: Any = None
) -> Inputs:
    """Make an estimator's inputs: as `as_inputs`, but checked and in single precision.

    Parameters
    ----------
    X : array, tensor, map-style Dataset of items x or (x, ...), DataLoader of one, or Inputs
    watch, id_of, ids : as in `as_inputs`

    Raises
    ------
    InvalidInput
        If X is anything else or has no rows, or an array or tensor has numbers that are not finite
        in single precision.
    """
    inputs = as_inputs(X, watch=watch, id_of=id_of, ids=ids)
    if not len(inputs):
        raise InvalidInput("Expected X of at least one row, got none.")
    if not isinstance(inputs, Resident):
        return inputs
    values = _single(inputs.tensor.detach())
    if values.is_floating_point():
        # of what the net gets: a large number in double precision is infinite in single precision
        _require_finite(values)
    return Resident(values)


def inputs_digest(inputs: Inputs, *, finite: bool = True) -> str:
    """Compute the SHA-256 of all inputs, by which a repeated fit without ids is recognised; a
    Dataset is read once for it.

    The same rows have the same digest in an array, a tensor or a Dataset.

    Parameters
    ----------
    inputs : Inputs
    finite : bool, default=True
        Whether numbers that are not finite are refused.

    Raises
    ------
    InvalidInput
        If a Dataset's items differ at each reading, or numbers are not finite.
    """
    if not inputs.steady:
        raise InvalidInput(
            "Expected ids= with a Dataset whose items differ each time they are read, as random"
            " transforms do: without ids nobody could tell whether these rows were drawn before."
            " Pass ids=, or augment in the recipe."
        )
    state = hashlib.sha256()
    for number, x in enumerate(inputs.batches(torch.arange(len(inputs)).split(_ROWS))):
        values = _single(x)
        if finite and values.is_floating_point():
            _require_finite(values)
        if not number:  # type and shape first: arrays of different shapes may have the same bytes
            state.update(f"{values.dtype}:{(len(inputs), *values.shape[1:])};".encode())
        state.update(values.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def inputs_name(inputs: Inputs, digest: Callable[[], str] | None = None) -> str:
    """Name the inputs for a fit's folder or a training's checkpoint: by their digest, or by their
    number if items differ at each reading.

    Parameters
    ----------
    inputs : Inputs
    digest : function, optional
        Computes the digest, if it is used elsewhere, too, and cached.
    """
    if not inputs.steady:
        return f"{len(inputs)} rows that differ each time they are read"
    return inputs_digest(inputs) if digest is None else digest()


def _single(values: Tensor) -> Tensor:
    """Convert to single precision."""
    # Nets compute in single precision; bytes and codes stay, since images are scaled and embeddings
    # look codes up.
    return values.float() if values.dtype in (torch.float64, torch.bool) else values


def _require_finite(values: Tensor) -> None:
    # checked in parts, since a mask of all would need as much memory as the inputs
    flat = values.reshape(-1)
    for start in range(0, len(flat), _CHECKED):
        if not bool(torch.isfinite(flat[start : start + _CHECKED]).all()):
            raise InvalidInput(
                "Expected finite inputs, got NaN or infinity in X, or numbers beyond 3.4e38. Fill,"
                " scale or drop them."
            )


def _finite(x: Any, i: int) -> Any:
    """Refuse an item of floats that are not finite: of those that are read anyway before a charge,
    the net's error would come after it."""
    if isinstance(x, Tensor):
        finite = not x.is_floating_point() or bool(torch.isfinite(_single(x)).all())
    else:
        with np.errstate(over="ignore"):
            finite = (
                not isinstance(x, np.ndarray)
                or x.dtype.kind != "f"
                or bool(np.isfinite(x.astype(np.float32)).all())
            )
    if not finite:
        raise InvalidInput(
            f"Expected finite inputs, got NaN or infinity in item {i} of X, or numbers beyond"
            " 3.4e38. Fill, scale or drop them."
        )
    return x


# A Dataset with evidence
# --------------------------------------------------------------------------------------------------


class WithEvidence(Dataset[tuple[Any, ...]]):
    """A Dataset of items (x, i, log-likelihood row), made by `with_evidence`.

    Attributes
    ----------
    noisy : NoisyLabels of n rows
    evidence : Form of n rows
        The evidence of all rows; `evidence.to(device)[i]` takes rows on a device.
    positions : (n,) int64 array
        Position in the dataset of each noisy row's item.
    watched_by : {"id", "content", "nothing"}
        How a change of the dataset's order is detected: by each item's id, by the content of some
        items, or not at all, because an item's content differed between readings (a random
        transform); a warning then says so.
    """

    def __init__(
        self,
        dataset: MapDataset,
        noisy: NoisyLabels,
        positions: NDArray[np.int64],
        *,
        features: Callable[[Any], Any],
        id_of: Callable[[Any], object] | None,
        rows: bool,
        form: Shape,
    ) -> None:
        self.dataset, self.noisy, self.positions, self.rows = dataset, noisy, positions, rows
        self.evidence = evidence_of(noisy, form=form)
        marks = (
            {}
            if id_of is not None
            else _first_look(lambda i: features(dataset[int(positions[i])]), len(positions))
        )
        self._watch = _Watch(dataset, features, id_of, noisy.ids, marks)
        self.watched_by = "id" if id_of is not None else "content" if marks else "nothing"
        if self.watched_by == "nothing":
            _warn_unwatched()

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        """Read one item: (x, i, (K,) float32), or (x, i) with `rows=False`; i is the row in
        `noisy`."""
        return self.__getitems__([i])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """Read several items; DataLoaders ask for a batch at once."""
        wanted = [self._row(i) for i in indices]
        found = [(self._read(i), i) for i in wanted]
        if not self.rows:
            return found
        table = self.evidence[torch.tensor(wanted, dtype=torch.int64)].expand(self.noisy.n_classes)
        return [(x, i, table[j]) for j, (x, i) in enumerate(found)]

    def _row(self, i: int) -> int:
        if not -len(self) <= i < len(self):
            raise IndexError(f"Expected a row of {len(self)}, got {i}.")
        return int(i) % len(self)

    def _read(self, i: int) -> Any:
        position = int(self.positions[i])
        item = self.dataset[position]
        self._watch.require_same(i, item, position)
        return self._watch.features(item)


def with_evidence(
    dataset: MapDataset,
    noisy: NoisyLabels,
    *,
    ids: "ArrayLike | None" = None,
    features: Callable[[Any], Any] | None = None,
    id_of: Callable[[Any], object] | None = None,
    rows: bool = True,
    form: Shape = "auto",
) -> WithEvidence:
    """Match a Dataset to noisy labels by id; return a Dataset of items (x, i, log-likelihood row).

    Parameters
    ----------
    dataset : map-style Dataset
        Items that `noisy` does not know are left out.
    noisy : NoisyLabels of n rows
    ids : (len(dataset),) array, optional
        Distinct ids of the items, as passed to `privatize`. By default an item's id is its
        position. Of noisy labels without ids of their own, there must be one for each item.
    features : function of an item, optional
        Returns an item's input x. By default the first part of a tuple or list, which leaves labels
        out, or the item itself.
    id_of : function of an item, optional
        Returns an item's id; every item that is read is then checked against its row.
    rows : bool, default=True
        False leaves the log-likelihood row out, for loops that keep the evidence on the device:
        `evidence.to(device)[i]`.
    form : {"auto", "dense", "compact"}, default="auto"
        See `evidence_of`.

    Returns
    -------
    WithEvidence
        n items, in the order of `noisy`; works in a DataLoader with workers. Memory: 8 bytes per
        row, and the evidence.

    Raises
    ------
    InvalidInput
        If ids repeat, are not as many as items, or lack a noisy row; if noisy labels without ids
        are not as many as items; if the dataset has no positions; or if items are mappings and
        `features` is missing. Later, when reading, if an item is not the one that was matched: a
        dataset whose order changes between epochs stops the training.

    See Also
    --------
    evidence_of : evidence by row, for loops that know which row an input is.
    likelihood_loss : the loss that takes the log-likelihood rows.

    Examples
    --------
    >>> loader = DataLoader(
    ...     with_evidence(images, noisy), batch_size=256, shuffle=True
    ... )  # doctest: +SKIP
    >>> for x, i, log_likelihood in loader:  # doctest: +SKIP
    ...     loss = likelihood_loss(model(x), log_likelihood)
    """
    require_noisy(noisy)
    require_positions(dataset)
    require_public_beside(noisy, ids, "ids")
    positions = positions_of(
        np.arange(len(dataset)) if ids is None else exact_array(ids),
        len(dataset),
        noisy,
        given=ids is not None,
    )
    return WithEvidence(
        dataset,
        noisy,
        positions,
        features=features or first_part,
        id_of=id_of,
        rows=rows,
        form=form,
    )


# Inputs and noisy labels of an estimator
# ----------------------------------------------------------------------------------------------


def together(X: Any, inputs: Inputs, noisy: Any, ids: ArrayLike | None) -> tuple[Inputs, Any]:
    """Match inputs and noisy or private labels of the same rows, in the order of X.

    Parameters
    ----------
    X : what `inputs` was made of
    inputs : Inputs
    noisy : NoisyLabels or PrivateLabels
    ids : (len(inputs),) or (len(inputs), columns) array, optional
        Ids of the inputs, to match by; inputs without a noisy label are left out. Without them a
        dataset of `with_evidence` must have the ids of `noisy`, and other inputs the rows of
        `noisy` in the same order.

    Raises
    ------
    InvalidInput
        If ids do not match, or the numbers of rows differ.
    """
    known = _ids_known(X, inputs)
    if ids is not None:
        require_same_order(index_of(X), "X", "ids", ids)
        if known is not None and not np.array_equal(known, np.asarray(ids)):
            raise InvalidInput(
                "Expected the ids of the rows that X has, got others than the dataset was matched"
                " by. Leave ids= out."
            )
        places, noisy = matched_by_id(ids, len(inputs), noisy)
        same = np.array_equal(places, np.arange(len(inputs)))
        return (inputs if same else inputs.take(torch.from_numpy(places))), in_order(noisy)
    if is_closed(noisy):
        check_count(len(noisy), len(inputs))
    else:
        require_same_rows(len(inputs), noisy)
    if same_index(X, noisy) or is_closed(noisy):
        return inputs, in_order(noisy)
    if known is None:
        # A Dataset need not be in the order in which the labels were privatized.
        warn_of_order(noisy, own=not isinstance(X, Dataset | DataLoader | Streamed))
    elif not np.array_equal(known, noisy.ids):
        raise InvalidInput(
            "Expected the noisy labels that the dataset was matched to, got those of other ids."
            " Pass dataset.noisy, or ids=."
        )
    return inputs, in_order(noisy)


def require_own_order(X: Any, ids: ArrayLike | None) -> None:
    """Refuse raw labels with a dataset that `with_evidence` has reordered, unless ids match them to
    items.

    Parameters
    ----------
    X : the user's X
    ids : array, optional
        Ids of the rows.
    """
    found = _matched(X)
    if found is None:
        return
    data, rows = found
    named = ids is not None and np.array_equal(np.asarray(ids), data.noisy.ids[rows])
    if not named and not np.array_equal(data.positions, np.arange(len(data.positions))):
        raise InvalidInput(
            "Expected noisy labels with a dataset of with_evidence, whose items are in the order of"
            " its noisy labels; got raw labels. Pass dataset.noisy, or the dataset that it was"
            " made of."
        )


def _matched(X: Any) -> tuple[WithEvidence, NDArray[np.int64]] | None:
    """Return the `with_evidence` dataset that X is or wraps, and which of its rows X has; None if
    there is none."""
    if isinstance(X, DataLoader | Streamed):
        return _matched(X.dataset)
    if isinstance(X, Subset):
        found = _matched(X.dataset)
        return None if found is None else (found[0], found[1][np.asarray(X.indices, np.int64)])
    return (X, np.arange(len(X))) if isinstance(X, WithEvidence) else None


def _ids_known(X: Any, inputs: Inputs) -> NDArray[Any] | None:
    """Return the ids that the inputs have themselves: of their items, or of the noisy labels that a
    dataset was matched to."""
    if isinstance(inputs, Streamed) and inputs.names is not None:
        return inputs.names
    found = _matched(X)
    return None if found is None else found[0].noisy.ids[found[1]]


# Detecting a changed order of items
# --------------------------------------------------------------------------------------------------


def first_part(item: Any) -> Any:
    """Return an item's input by default: the first part of a tuple or list, which leaves raw labels
    out, or the item itself."""
    if isinstance(item, Mapping):
        raise InvalidInput(
            "Expected to know which part of an item is x, got a mapping with keys"
            f" {', '.join(map(str, item))}. Say it to with_evidence or as_inputs, for example"
            " as_inputs(X, features=lambda item: item['pixel_values']), and leave the label out."
        )
    return item[0] if isinstance(item, tuple | list) else item


def require_positions(dataset: Any) -> None:
    """Refuse anything but a map-style Dataset."""
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        raise InvalidInput(
            "Expected a map-style Dataset with __len__ and __getitem__, got"
            f" {type(dataset).__name__}: a stream has no positions to match labels to. Put it into"
            " a map-style Dataset, or yield ids and use evidence_of(noisy) in your loop."
        )


# number of items whose content is compared each time they are read, as a sample of the dataset
WATCHED = 64
# times that each of them is read again at first, to detect random transforms; more if there are
# fewer items
_LOOKS = 4
_AGAIN = 8  # times that a changed item is read again before it counts as another one


def fingerprint(item: object) -> bytes:
    """Hash an item's content to 16 bytes: tensors, arrays, images, and tuples, lists and mappings
    of these.

    Parameters
    ----------
    item : object
        Features only. Other types are pickled.
    """
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, item)
    return digest.digest()


def _feed(digest: "hashlib.blake2b", item: object) -> None:
    if isinstance(item, torch.Tensor):
        digest.update(f"t{item.dtype}{tuple(item.shape)}".encode())
        digest.update(item.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(item, Mapping):
        for key in item:
            _feed(digest, str(key))
            _feed(digest, item[key])
    elif isinstance(item, tuple | list):
        digest.update(f"s{len(item)}".encode())
        for part in item:
            _feed(digest, part)
    # arrays, and Pillow's images
    elif hasattr(item, "__array_interface__") and not np.asarray(item).dtype.hasobject:
        array = np.asarray(item)
        digest.update(f"a{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    else:
        digest.update(pickle.dumps(item))


def _first_look(read: Callable[[int], object], n: int) -> dict[int, bytes]:
    """Hash some items, by position; return none if items differ between readings, as with random
    transforms.

    Parameters
    ----------
    read : function of a position in [0, n)
        Returns the features of the item there.
    n : int
        At least 1.
    """
    chosen = np.unique(np.linspace(0, n - 1, min(WATCHED, n)).round().astype(np.int64)).tolist()
    marks = {i: fingerprint(read(i)) for i in chosen}
    # A transform that rarely changes an item would pass a single comparison, so each item is read
    # several times.
    passes = -(-_LOOKS * WATCHED // len(chosen))
    steady = all(fingerprint(read(i)) == marks[i] for _ in range(passes) for i in chosen)
    return marks if steady else {}


@dataclass(frozen=True, eq=False)
class _Watch:
    """Detects that an item is not the one that belongs to row i, by the item's id, or else by the
    content of some items.

    Attributes
    ----------
    dataset : map-style Dataset
    features : function of an item
    id_of : function of an item, optional
    ids : (n,) or (n, columns) array, optional
        Id of each row.
    marks : mapping of row to fingerprint
        Fingerprints of the sampled items.
    """

    dataset: MapDataset
    features: Features
    id_of: Callable[[Any], object] | None
    ids: NDArray[Any] | None
    marks: Mapping[int, bytes]

    def require_same(self, i: int, item: Any, position: int) -> None:
        """Refuse an item that is not the one that was first read at this position."""
        if self.id_of is not None and self.ids is not None:
            expected, found = np.asarray(self.ids[i]), np.asarray(self.id_of(item))
            if not np.array_equal(found.reshape(-1), expected.reshape(-1)):
                raise InvalidInput(
                    f"Expected the item with id {expected.tolist()!r} at position {position}, got"
                    f" id {found.tolist()!r}: the dataset's order has changed. Match the evidence"
                    " again, or fix the dataset's order."
                )
        elif i in self.marks and not self._still_there(self.marks[i], item, position):
            raise InvalidInput(
                f"Expected the item that stood at position {position} at first, got another one:"
                " the dataset's order or content has changed, so that items would be trained with"
                " other rows' labels. Fix the dataset's order, or pass id_of= so that each item"
                " names itself."
            )

    def _still_there(self, mark: bytes, item: Any, position: int) -> bool:
        """Return whether the item is unchanged, possibly after a few more readings: a rare random
        transform alters it only now and then."""
        return fingerprint(self.features(item)) == mark or any(
            fingerprint(self.features(self.dataset[position])) == mark for _ in range(_AGAIN)
        )


def _warn_unwatched() -> None:
    """Warn that a change of the dataset's order cannot be detected."""
    warnings.warn(
        "Items of the dataset differ each time they are read, as with random transforms: if its"
        " order changed, items would be trained with other rows' labels, and nobody would see it."
        " Pass id_of=, by which each item names itself, or transform batches: Recipe(augment=...).",
        LabelDPWarning,
        stacklevel=4,
    )
