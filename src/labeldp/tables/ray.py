# SPDX-License-Identifier: Apache-2.0
"""Releases on Ray Data: `release(dataset, out, spec)` in two passes.

Workers need labeldp in their Python. The run's secrets (with a key source, only half of them) are kept by an actor, from which workers
fetch them and which is killed after each pass: they are in no closure, no name and no log.
"""

import importlib.util
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from labeldp.errors import InvalidInput, LabelDPError, MissingExtra, ReleaseError
from labeldp.privacy.ledger import Ledger
from labeldp.tables.distributed import ClusterRelease, release_on
from labeldp.tables.jobs import Handle, Job, Loan
from labeldp.tables.passes import Progress, silent
from labeldp.tables.place import Place
from labeldp.tables.spec import ReleaseSpec

if TYPE_CHECKING:
    from ray.data import Dataset

INSTALL = "pip install 'labeldp[ray]'"
BUCKETS = 64  # of ids, in the search for repeats
BUCKET = "__labeldp_bucket"


def release(
    dataset: "Dataset", out: object, spec: ReleaseSpec, ledger: Ledger | None = None, *, redraw: bool = False, progress: Progress = silent
) -> "Dataset":
    """Release a Ray Dataset whose label column is private; eager.

    Parameters
    ----------
    dataset : ray.data.Dataset
        Evaluated twice; if the two evaluations differ, nothing is published.
    out : str, Path or Place
        Folder for the Parquet files, new, where driver and workers can write; the manifest is written beside it.
    spec : ReleaseSpec
        With `id`, `classes` and `dataset`.
    ledger : Ledger, optional
        The driver's; your own by default.
    redraw : bool
        Draw again what was released before; charged once more.

    Returns
    -------
    ray.data.Dataset that reads `out`.

    Guarantee
    ---------
    As `labeldp.release`: the same run gives the same rows on every engine, however often tasks are tried again.

    Cost
    ----
    Two passes, the first over ids, label and prior alone. order="keep" moves no rows; the keyed order sorts the table once; a unit's
    cap moves rows to their units once.
    """
    import ray

    done = release_dataset(dataset, out, spec, ledger, redraw=redraw, progress=progress)
    return ray.data.read_parquet(done.place.path, filesystem=done.place.filesystem)


def release_dataset(
    dataset: "Dataset", out: object, spec: ReleaseSpec, ledger: Ledger | None = None, *, redraw: bool = False, progress: Progress = silent
) -> ClusterRelease:
    """`release`, with receipt and manifest instead of a Dataset."""
    if not hasattr(dataset, "map_batches"):
        raise InvalidInput(f"Expected a Ray Dataset, got {type(dataset).__name__}.")
    with _plain_errors():
        return release_on(_Ray(), dataset, out, spec, ledger, redraw=redraw, progress=progress)


def start(address: str | None = None) -> None:
    """Join the cluster at an address, or start one on this machine."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra(f"Expected Ray for engine='ray', which is not installed. {INSTALL}.")
    import ray

    if not ray.is_initialized():
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def read(source: Place) -> "Dataset":
    """A Parquet file or folder as a Dataset."""
    import ray

    if source.suffix.lower() in (".csv", ".tsv"):
        raise InvalidInput(f"Expected Parquet for engine='ray', got {source.name}. Convert it, or read it into a Dataset of your own.")
    return ray.data.read_parquet(source.path, filesystem=source.filesystem)


class _Keeper:
    """Holds a loan in the memory of a process of its own."""

    def __init__(self) -> None:
        self._loan: Loan | None = None

    def take(self, loan: Loan) -> None:
        self._loan = loan

    def give(self) -> Loan | None:
        return self._loan


@dataclass(frozen=True)
class _Actor:
    """The handle that workers fetch a loan with."""

    keeper: Any

    def fetch(self) -> Loan:
        import ray

        loan: Loan = ray.get(self.keeper.give.remote())
        return loan


class _Ray:
    """What Ray Data does for a release."""

    name = "Ray"

    def schema(self, table: "Dataset") -> pa.Schema:
        """Of the Arrow blocks."""
        found = table.schema()
        base = getattr(found, "base_schema", None)
        if not isinstance(base, pa.Schema):
            raise InvalidInput("Expected a Dataset of Arrow tables, got another kind of blocks. Read it with ray.data.read_parquet.")
        return base

    def select(self, table: "Dataset", names: Sequence[str]) -> "Dataset":
        """A projection, which the Parquet reader pushes down."""
        return table.select_columns(list(names))

    @contextmanager
    def lend(self, loan: Loan) -> Iterator[Handle]:
        """An actor of the driver's job, killed at the end."""
        import ray

        keeper = ray.remote(num_cpus=0)(_Keeper).remote()
        try:
            ray.get(keeper.take.remote(loan))
            yield _Actor(keeper)
        finally:
            ray.kill(keeper)

    def summaries(self, table: "Dataset", job: Job) -> Iterable[bytes]:
        """Of each block the attempt whose result Ray took."""
        with _settings(preserve_order=True):
            found = table.map_batches(_OnTable(job), batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
            batches = found.iter_batches(batch_format="pyarrow", batch_size=None)
            return [value for batch in batches for value in batch.column("summary").to_pylist()]

    def flow(self, table: "Dataset", job: Job, schema: pa.Schema) -> "Dataset":
        """map_batches over whole blocks."""
        return table.map_batches(_OnTable(job), batch_format="pyarrow", batch_size=None, zero_copy_batch=True)

    def ordered(self, table: "Dataset", by: str) -> "Dataset":
        """A distributed sort."""
        return table.sort(by)

    def capped(self, table: "Dataset", unit: str, by: str, cap: int, mark: str) -> "Dataset":
        """Rows are brought together by unit, and marked there."""
        return (
            table.map_batches(_Bucketed(unit), batch_format="pyarrow", batch_size=None)
            .groupby(BUCKET)
            .map_groups(_Marked(unit, by, cap, mark), batch_format="pyarrow")
        )

    def repeats(self, table: "Dataset", column: str) -> bool:
        """One shuffle of the ids alone."""
        found = (
            table.map_batches(_Bucketed(column), batch_format="pyarrow", batch_size=None)
            .groupby(BUCKET)
            .map_groups(_Repeated(column), batch_format="pyarrow")
        )
        with _settings():
            return any(bool(row["repeated"]) for row in found.iter_rows())


@dataclass(frozen=True)
class _OnTable:
    """A job as a function of a block."""

    __name__: ClassVar[str] = "on_table"  # Ray asks functions for it

    job: Job

    def __call__(self, table: pa.Table) -> pa.Table:
        found = list(self.job(iter(table.to_batches())))
        return pa.Table.from_batches(found) if found else pa.table({})


@dataclass(frozen=True)
class _Bucketed:
    """Adds the number of the bucket that a value belongs to."""

    __name__: ClassVar[str] = "bucketed"  # Ray asks functions for it

    column: str

    def __call__(self, table: pa.Table) -> pa.Table:
        from labeldp._hash import public_hash

        values = table.column(self.column).combine_chunks()
        words = public_hash("bucket", values if not pa.types.is_integer(values.type) else values.to_numpy())
        return table.append_column(BUCKET, pa.array((words % np.uint64(BUCKETS)).astype(np.int32)))


@dataclass(frozen=True)
class _Repeated:
    """Whether a bucket holds some value twice."""

    __name__: ClassVar[str] = "repeated"  # Ray asks functions for it

    column: str

    def __call__(self, table: pa.Table) -> pa.Table:
        return pa.table({"repeated": [pc.count_distinct(table.column(self.column)).as_py() < len(table)]})


@dataclass(frozen=True)
class _Marked:
    """Marks the rows of each unit that are within the cap."""

    __name__: ClassVar[str] = "marked"  # Ray asks functions for it

    unit: str
    by: str
    cap: int
    mark: str

    def __call__(self, table: pa.Table) -> pa.Table:
        from labeldp.privacy.run import keep_within_cap

        units = table.column(self.unit).combine_chunks().dictionary_encode().indices.to_numpy()
        words = (table.column(self.by).to_numpy().view(np.uint64)) ^ np.uint64(1 << 63)
        kept = keep_within_cap(units, words, self.cap)
        return table.drop_columns([BUCKET]).append_column(self.mark, pa.array(kept))


@contextmanager
def _settings(*, preserve_order: bool = False) -> Iterator[None]:
    """Ray Data's settings for one execution: order, and as many parts of a shuffle as there are processors, twice."""
    import ray

    context = ray.data.DataContext.get_current()
    before = context.execution_options.preserve_order, context.default_hash_shuffle_parallelism
    context.execution_options.preserve_order = preserve_order
    context.default_hash_shuffle_parallelism = max(4, 2 * int(ray.cluster_resources().get("CPU", 1)))
    try:
        yield
    finally:
        context.execution_options.preserve_order, context.default_hash_shuffle_parallelism = before


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Ray's errors carry a worker's traceback; what is ours in it is told alone."""
    try:
        yield
    except LabelDPError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith("ray"):
            raise
        cause = getattr(error, "cause", None)
        if isinstance(cause, LabelDPError):
            raise cause from None
        raise ReleaseError(
            f"Expected Ray to finish both passes, got {type(error).__name__}. Nothing was published; the same call picks up a charge that "
            "was made. Ray's own log says more."
        ) from error
