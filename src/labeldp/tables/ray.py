# SPDX-License-Identifier: Apache-2.0
"""Releases on Ray Data: `release(dataset, out, spec)`.

Workers need labeldp in their Python. An actor holds the run's secret (with a key source, one half
of it), from which workers fetch it. The actor forgets it after each pass and is killed at the end,
so that it is in no closure, name or log.
"""

import importlib.util
import inspect
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial, update_wrapper
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labeldp._hash import public_hash
from labeldp.errors import InvalidInput, LabelDPError, MissingExtra
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.tables._place import Place
from labeldp.tables._release import TableRelease, release_table
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._cluster import ClusterEngine, Handle, Job, Shipment, plain_errors
from labeldp.tables.engines._local import Progress, silent
from labeldp.tables.formats._parquet import without_views
from labeldp.tables.formats._table import Source

if TYPE_CHECKING:
    from ray.data import Dataset

INSTALL = "pip install 'labeldp[ray]'"
BUCKET = "__labeldp_bucket"
FEW, MANY = 1 << 16, 1 << 20  # smallest and largest number of rows of a bucket
# By default Ray does not retry a task that raises, and retries one whose worker dies for ever.
TRIES: dict[str, Any] = {"max_retries": 8, "retry_exceptions": True}


def release(
    dataset: "Dataset",
    out: object,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    *,
    redraw: bool = False,
    progress: Progress = silent,
) -> "Dataset":
    """Release a Ray Dataset with a private label column, eagerly.

    Parameters
    ----------
    dataset : ray.data.Dataset
        The table. It is evaluated twice; if the two evaluations differ, nothing is published.
    out, spec, ledger, redraw, progress
        As of `labeldp.tables.spark.release`.

    Returns
    -------
    ray.data.Dataset
        Reads `out`.

    Notes
    -----
    Guarantee: as `labeldp.release`. A run gives the same rows on every engine, however often tasks
    are retried. Cost: as `labeldp.tables.spark.release`; order="shuffle" sorts the table once.
    """
    import ray

    done = release_dataset(dataset, out, spec, ledger, redraw=redraw, progress=progress)
    return ray.data.read_parquet(done.place.path, filesystem=done.place.filesystem)


def release_dataset(
    dataset: "Dataset",
    out: object,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    *,
    redraw: bool = False,
    progress: Progress = silent,
    files: Source | None = None,
) -> TableRelease:
    """Release a Dataset as `release` does; return receipt and manifest instead of a Dataset."""
    if not hasattr(dataset, "map_batches"):
        raise InvalidInput(f"Expected a Ray Dataset, got {type(dataset).__name__}.")
    with _plain_errors(), closing(_Ray()) as cluster:
        return release_table(
            ClusterEngine(cluster, dataset, progress, files),
            Place.of(out),
            spec,
            ledger_of(ledger),
            redraw=redraw,
        )


def start(address: str | None = None) -> None:
    """Join the cluster at an address, or start one on this machine."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtra(f"Expected Ray for engine='ray', which is not installed: {INSTALL}.")
    import ray

    # A session that is running belongs to the user, and keeps its settings.
    if not ray.is_initialized():
        ray.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def read(source: Place) -> "Dataset":
    """Read a Parquet file, or a folder of them, as a Dataset."""
    with _plain_errors():
        return _read(source.path, source.filesystem)


def _read(paths: str | list[str], filesystem: Any) -> "Dataset":
    import ray

    context = ray.data.DataContext.get_current()
    # The newer reader lists files in tasks, which takes longer than a small release, and in
    # threads, which sometimes fails without aiohttp.
    newer, context.use_datasource_v2 = getattr(context, "use_datasource_v2", None), False
    try:
        return ray.data.read_parquet(paths, filesystem=filesystem)
    finally:
        context.use_datasource_v2 = newer


class _Keeper:
    """An actor that holds a shipment in the memory of its process."""

    # Secrets and row set are sent in separate calls: small arguments bypass Ray's object store,
    # which may spill to disk, but a row set may be large.

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}

    def take(self, name: str, value: Any) -> None:
        self._held[name] = value

    def give(self, name: str) -> Any:
        return self._held[name]


@dataclass(frozen=True)
class _Actor:
    """A handle by which workers fetch a shipment from the actor."""

    keeper: Any

    def fetch(self) -> Shipment:
        import ray

        return Shipment(*ray.get([self.keeper.give.remote(name) for name in ("secrets", "rows")]))


class _Ray:
    """The `Cluster` of Ray Data."""

    name = "Ray"
    fix = (
        "A Dataset is evaluated anew in each pass: its files changed, or which rows it has depends"
        " on how Ray runs it, as with random_shuffle(), or limit() of rows in no fixed order."
        " Release dataset.materialize(), or write the table and release what you wrote. Rows other"
        " than those of the first pass are charged anew."
    )

    def __init__(self) -> None:
        self._keeper: Any = None

    def schema(self, table: "Dataset") -> pa.Schema:
        """Return the schema of the Arrow blocks, without Arrow's views, which cannot be
        reordered."""
        base = getattr(table.schema(), "base_schema", None)
        if not isinstance(base, pa.Schema):
            raise InvalidInput(
                "Expected a Dataset of Arrow tables, got another kind of blocks. Read it with"
                " ray.data.read_parquet."
            )
        return pa.schema([field.with_type(without_views(field.type)) for field in base])

    def files(self, table: "Dataset") -> Sequence[str]:
        """List the files of every read in the plan: `input_files` knows those of a plan's last step
        only."""
        found: list[str] = []
        for step in _steps(table._logical_plan.dag):
            found += step.infer_metadata().input_files or []
            # Newer readers list their files when they run.
            places = [Place.of((step.filesystem, path)) for path in getattr(step, "paths", ())]
            found += [
                each.path
                for place in places
                for each in (place.files() if place.is_folder() else [place])
            ]
        return found

    def altered(self, table: "Dataset") -> Mapping[str, str]:
        """Name no column: Arrow reads what it has written."""
        return {}

    def read(self, files: Sequence[Place]) -> "Dataset":
        """Read Parquet files, in their order."""
        return _read([file.path for file in files], files[0].filesystem)

    def select(self, table: "Dataset", names: Sequence[str]) -> "Dataset":
        """Project to these columns, which the Parquet reader pushes down."""
        return table.select_columns(list(names))

    def joined(
        self, table: "Dataset", other: "Dataset", on: Sequence[str], more: str, rows: int
    ) -> "Dataset":
        """Join by the columns `on`, bucket by bucket. Ray's own join needs another library."""
        kinds = self.schema(table)
        # Both sides get one schema, with nulls in missing columns, because a union of different
        # schemas may fail.
        kind = pa.schema(
            [*(pa.field(field.name, field.type) for field in kinds), pa.field(more, pa.binary())]
        )
        both = [
            each.map_batches(_with(_widened, kind), batch_format="pyarrow", batch_size=None)
            for each in (table, other)
        ]
        return _by_bucket(both[0].union(both[1]), on, 2 * rows, _with(_joined, tuple(on), more))

    @contextmanager
    def ship(self, shipment: Shipment) -> Iterator[Handle]:
        """Send a shipment to the actor, which forgets it at the end."""
        import ray

        if self._keeper is None:
            self._keeper = ray.remote(num_cpus=0)(_Keeper).remote()
        ray.get(
            [
                self._keeper.take.remote("secrets", shipment.secrets),
                self._keeper.take.remote("rows", shipment.rows),
            ]
        )
        try:
            yield _Actor(self._keeper)
        finally:
            with suppress(ray.exceptions.RayError):  # `close` kills the actor anyway
                ray.get(
                    [
                        self._keeper.take.remote("secrets", ()),
                        self._keeper.take.remote("rows", None),
                    ]
                )

    def close(self) -> None:
        """Kill the actor."""
        import ray

        if self._keeper is not None:
            ray.kill(self._keeper)
            self._keeper = None

    def summaries(self, table: "Dataset", job: Job) -> Iterable[bytes]:
        """Run a job on every block; Ray returns the result of one attempt for each."""
        with _in_order(table):
            return [
                value
                for batch in _batches(self.flow(table, job, job.schema))
                for value in batch.column("summary").to_pylist()
            ]

    def flow(self, table: "Dataset", job: Job, schema: pa.Schema) -> "Dataset":
        """Run a job on every block, by map_batches."""
        return table.map_batches(
            _with(_on_table, job),
            batch_format="pyarrow",
            batch_size=None,
            zero_copy_batch=True,
            **_tries(table.map_batches),
        )

    def ordered_summaries(self, table: "Dataset", by: str, rows: int, job: Job) -> Iterable[bytes]:
        """Run a job on sorted buckets of equal ranges of a uniform column. Ray's own sort samples
        the table first, and is far slower."""
        found = _by_bucket(table, [by], rows, _with(_sorted, by, job), ranges=True)
        return [value for batch in _batches(found) for value in batch.column("summary").to_pylist()]

    def capped(
        self, table: "Dataset", unit: str, by: str, cap: int, mark: str, rows: int
    ) -> "Dataset":
        """Mark the first `cap` rows of each unit in the order of `by`, in buckets of whole
        units."""
        return _by_bucket(table, [unit], rows, _with(_marked, unit, by, cap, mark))

    def repeats(self, table: "Dataset", column: str, rows: int) -> bool:
        """Tell whether a value of a column occurs twice, by one shuffle of the column."""
        found = _by_bucket(table, [column], rows, _with(_repeated, column))
        return any(pc.any(batch.column("repeated")).as_py() for batch in _batches(found))


def _steps(last: Any) -> list[Any]:
    return [last, *chain.from_iterable(map(_steps, last.input_dependencies))]


def _batches(table: "Dataset") -> Iterator[Any]:
    yield from table.iter_batches(batch_format="pyarrow", batch_size=None)


def _by_bucket(
    table: "Dataset",
    columns: Sequence[str],
    rows: int,
    work: Callable[[pa.Table], pa.Table],
    *,
    ranges: bool = False,
) -> "Dataset":
    """Group rows with equal values, or (`ranges`) with values in one range, into buckets, and apply
    `work` to each."""
    import ray

    # One bucket for each core, fewer for few rows, more if a bucket would not fit in memory.
    resources: dict[str, float] = ray.cluster_resources()
    buckets = max(1, min(int(resources.get("CPU", 1)), rows // FEW), -(-rows // MANY))
    # By a hash of the values, so that equal values are in one bucket; or by range, so that buckets
    # are in order.
    marking = _with(_bucketed, tuple(columns), buckets, ranges)
    marked = table.map_batches(
        marking, batch_format="pyarrow", batch_size=None, **_tries(table.map_batches)
    )
    groups = marked.groupby(BUCKET, num_partitions=buckets)
    return groups.map_groups(work, batch_format="pyarrow", **_tries(groups.map_groups))


def _tries(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that make Ray retry tasks, if its version has them."""
    return TRIES if "ray_remote_args" in inspect.signature(method).parameters else {}


def _with(work: Callable[..., pa.Table], *first: Any) -> Callable[[pa.Table], pa.Table]:
    """Return a function of a block with the first arguments given; it has the name that Ray asks
    functions for."""
    return update_wrapper(partial(work, *first), work)


def _on_table(job: Job, table: pa.Table) -> pa.Table:
    """Run a job on a block."""
    return pa.Table.from_batches(job(iter(table.to_batches())), job.schema)


def _bucketed(columns: Sequence[str], buckets: int, ranges: bool, table: pa.Table) -> pa.Table:
    """Add to each row the number of its bucket."""
    place = _bucket_of([table.column(name) for name in columns], buckets, ranges)
    return table.append_column(BUCKET, pa.array(place.astype(np.int32)))


def _bucket_of(
    columns: Sequence[pa.ChunkedArray], buckets: int, ranges: bool
) -> NDArray[np.integer]:
    if ranges:
        (values,) = columns
        place: NDArray[np.float64] = np.floor((values.to_numpy() / 2.0**64 + 0.5) * buckets)
        return np.minimum(place.astype(np.int64), buckets - 1)
    # Equal values must get equal hashes, also if one block has them as a dictionary and another
    # does not.
    plain = map(_plain, columns)
    words = public_hash(
        "bucket",
        [c.to_numpy() if pa.types.is_integer(c.type) else c.combine_chunks() for c in plain],
    )
    found: NDArray[np.uint64] = words % np.uint64(buckets)
    return found


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decode a column if it is dictionary-encoded."""
    return (
        pc.cast(column, column.type.value_type) if pa.types.is_dictionary(column.type) else column
    )


def _sorted(by: str, job: Job, table: pa.Table) -> pa.Table:
    """Sort a bucket, and run a job on it."""
    return _on_table(job, table.sort_by(by))


def _widened(schema: pa.Schema, table: pa.Table) -> pa.Table:
    """Add the missing columns of a schema, as nulls."""
    columns = [
        (
            table.column(f.name).cast(f.type)
            if f.name in table.column_names
            else pa.nulls(len(table), f.type)
        )
        for f in schema
    ]
    return pa.table(columns, schema=schema)


def _joined(on: Sequence[str], more: str, table: pa.Table) -> pa.Table:
    """Join a bucket that holds the rows of both tables: those without and those with a value in
    column `more`."""
    other = pc.is_valid(table.column(more))
    rows, said = table.filter(pc.invert(other)).drop_columns([BUCKET]), table.filter(other)
    place = pc.index_in(_keys(rows, on), value_set=_keys(said, on).combine_chunks())
    rows = rows.set_column(rows.column_names.index(more), more, said.column(more).take(place))
    return rows.filter(pc.is_valid(place))


def _keys(table: pa.Table, on: Sequence[str]) -> pa.ChunkedArray:
    """Return the key of each row: the column, or the text of several columns with their lengths, so
    that different keys differ."""
    columns = [_plain(table.column(name)) for name in on]
    if len(columns) == 1:
        return columns[0]
    text = [pc.cast(c, pa.large_string()) for c in columns]
    lengths = [pc.cast(pc.binary_length(c), pa.large_string()) for c in text]
    return pc.binary_join_element_wise(
        *(part for pair in zip(lengths, text, strict=True) for part in pair), ":"
    )


def _repeated(column: str, table: pa.Table) -> pa.Table:
    """Tell whether a bucket has a value twice."""
    return pa.table({"repeated": [pc.count_distinct(table.column(column)).as_py() < len(table)]})


def _marked(unit: str, by: str, cap: int, mark: str, table: pa.Table) -> pa.Table:
    """Mark the rows of each unit that are within the cap."""
    from labeldp.custody._rows import keep_within_cap

    units = pc.rank(_plain(table.column(unit)), tiebreaker="dense").to_numpy()
    # Undo `sortable`: every engine keeps the rows of a unit with the smallest unsigned words.
    words = table.column(by).to_numpy().view(np.uint64) ^ np.uint64(1 << 63)
    kept = keep_within_cap(units, words, cap)
    return table.drop_columns([BUCKET]).append_column(mark, pa.array(kept))


@contextmanager
def _in_order(table: "Dataset") -> Iterator[None]:
    """Make a Dataset, and those derived from it, return blocks in order, within a `with` block."""
    options = table.context.execution_options
    # All Datasets that were derived from one share the context, so the option is restored.
    before, options.preserve_order = options.preserve_order, True
    try:
        yield
    finally:
        options.preserve_order = before


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Replace Ray's errors by messages of our own."""
    with warnings.catch_warnings(), plain_errors(_is_of_ray, _told, "Ray"):
        warnings.filterwarnings("ignore", ".*ray_remote_args.*", DeprecationWarning)
        yield


def _is_of_ray(error: BaseException) -> bool:
    """Tell Ray's errors from ours, also those by which Ray wraps ours in a class of both, with a
    worker's traceback as text."""
    return type(error).__module__.startswith("ray")


def _told(error: BaseException) -> LabelDPError | None:
    cause: BaseException | None = error
    # Ray wraps a worker's error, sometimes more than once.
    while cause is not None and (_is_of_ray(cause) or not isinstance(cause, LabelDPError)):
        cause = getattr(cause, "cause", None) or cause.__cause__
    # Ray adds lines of its own
    return None if cause is None else type(cause)(str(cause).partition("\n")[0])
