# SPDX-License-Identifier: Apache-2.0
"""Releases on Apache Spark: `release(df, out, spec)`, and the sessions that the command line
starts.

Workers need labeldp in their Python. The run's secret (with a key source, one half of it) is sent
to them as a broadcast variable, which is destroyed after each pass, so that it is in no plan,
closure or log. Spark writes broadcast variables and shuffled rows, which may hold raw labels, to
its local folders. `spark.io.encryption.enabled`, which sessions started here set, encrypts both.
"""

import importlib.util
import inspect
import os
import pickle
import re
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from labeldp.errors import InvalidInput, MissingExtra
from labeldp.ledger._ledger import Ledger, ledger_of
from labeldp.tables._place import Place
from labeldp.tables._release import TableRelease, release_table
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._cluster import (
    SUMMARY,
    ClusterEngine,
    Handle,
    Job,
    Shipment,
    plain_errors,
)
from labeldp.tables.engines._local import Progress, silent
from labeldp.tables.formats._parquet import root_of
from labeldp.tables.formats._table import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INSTALL = "pip install 'labeldp[spark]'"
JAVA = (
    "Install Java 17 or newer, for example `apt install openjdk-17-jre-headless`, or set JAVA_HOME."
)
KEEP = "Release df.localCheckpoint(), or write the table and release what you wrote."
FEW, MANY = 1 << 18, 1 << 22  # smallest and largest number of rows of a partition that is sorted


def release(
    df: "DataFrame",
    out: object,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    *,
    redraw: bool = False,
    progress: Progress = silent,
) -> "DataFrame":
    """Release a DataFrame with a private label column, eagerly.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The table. It is evaluated twice; if the two evaluations differ, nothing is published. If
        Spark says that they may, it is refused.
    out : str, Path or Place
        New folder for the Parquet files, to which driver and workers can write. The manifest is
        written beside it.
    spec : ReleaseSpec
        It must have `id`, declared `classes` and `dataset`.
    ledger : Ledger, or its path, optional
        A ledger that the driver can reach; the user's own by default.
    redraw : bool
        Draw and charge again a table that was released before. False by default.
    progress : function, optional
        Called with the name of a pass, the part that is done, and the total.

    Returns
    -------
    pyspark.sql.DataFrame
        Reads `out`.

    See Also
    --------
    labeldp.release : Releases files on one machine, with the same errors.

    Notes
    -----
    Guarantee: as `labeldp.release`. A run gives the same rows on every engine, however often tasks
    are retried. Cost: two passes, the first over ids, label and prior only; one shuffle of 12 bytes
    a row for more than 50 million text ids. The driver holds up to 8 bytes a row for scattered or
    text ids, and for units. order="shuffle" shuffles the table once, and order="keep" does not; a
    unit's cap shuffles rows by unit, and a model's answers are joined by id.
    """
    done = release_frame(df, out, spec, ledger, redraw=redraw, progress=progress)
    return _spark_of(df).read.parquet(_path(done.place))


def release_frame(
    df: "DataFrame",
    out: object,
    spec: ReleaseSpec,
    ledger: Ledger | None = None,
    *,
    redraw: bool = False,
    progress: Progress = silent,
    files: Source | None = None,
) -> TableRelease:
    """Release a DataFrame as `release` does; return receipt and manifest instead of a DataFrame."""
    with _quiet(), _plain_errors():
        cluster = _Spark(_spark_of(df))
        if not _plan_of(df).deterministic():
            raise InvalidInput(
                "Expected a DataFrame with the same rows each time that it is evaluated, got one"
                " that Spark calls non-deterministic, as by rand(), uuid() or"
                f" monotonically_increasing_id(). {KEEP}"
            )
        return release_table(
            ClusterEngine(cluster, df, progress, files),
            Place.of(out),
            spec,
            ledger_of(ledger),
            redraw=redraw,
        )


def start(master: str | None = None) -> "SparkSession":
    """Return the session that is running, or start one: on all cores of this machine, or at
    `master`."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pandas") is None:
        raise MissingExtra(
            f"Expected PySpark for engine='spark', which is not installed: {INSTALL}. It needs"
            f" Java, too. {JAVA}"
        )
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise MissingExtra(f"Expected Java for engine='spark', got none. {JAVA}")
    from pyspark.sql import SparkSession

    # by default workers run the system's Python, which lacks labeldp
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    options = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 16),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.io.encryption.enabled": "true",
        "spark.log.level": "ERROR",
    }
    # The second number lets Spark retry tasks, as on a cluster.
    building = SparkSession.builder.appName("labeldp").master(
        master or f"local[{os.cpu_count()},4]"
    )
    for name, value in options.items():
        building = building.config(name, value)
    try:
        with _quiet():
            return building.getOrCreate()
    except Exception as error:
        if not _is_of_spark(error):
            raise
        raise MissingExtra(
            f"Expected Spark to start{f' at {master}' if master else ''}, got"
            f" {type(error).__name__}. Is the address right, and Java new enough? {JAVA}"
        ) from None


def read(session: "SparkSession", source: Place) -> "DataFrame":
    """Read a Parquet file, or a folder or pattern of them, as a DataFrame."""
    with _plain_errors():
        if source.exists():
            return session.read.parquet(_path(source))
        # Names of folders below the first "*", such as day=1, are columns, as on the local engine.
        return session.read.option("basePath", _address(root_of(source))).parquet(
            _path(source, pattern=True)
        )


@dataclass(frozen=True)
class _Broadcast:
    """A handle by which workers fetch a shipment from a broadcast variable."""

    variable: Any

    def fetch(self) -> Shipment:
        shipment: Shipment = pickle.loads(self.variable.value)
        return shipment


class _Spark:
    """The `Cluster` of Spark."""

    name = "Spark"
    fix = (
        "A DataFrame is evaluated anew in each pass: its files changed, or which rows it has"
        " depends on how Spark runs it, as with limit() or dropDuplicates() after a repartition."
        f" {KEEP} Rows other than those of the first pass are charged anew."
    )

    def __init__(self, session: "SparkSession") -> None:
        self._session = session

    def schema(self, table: "DataFrame") -> pa.Schema:
        """Return the Arrow schema in which Spark passes rows to Python."""
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        _check_case(self._session, table.columns)
        zone: dict[str, Any] = (
            {"timezone": "UTC"}
            if "timezone" in inspect.signature(to_arrow_schema).parameters
            else {}
        )
        # Field by field, so that the message can name a column that Spark cannot pass to Python.
        fields = []
        for field in table.schema.fields:
            try:
                (made,) = to_arrow_schema(StructType([field]), **zone)
            except PySparkException:
                made = None
            if made is None or pa.types.is_time(made.type):  # which Spark cannot read from Parquet
                raise InvalidInput(
                    "Expected columns that Spark hands to Python and reads from Parquet, got"
                    f" {field.name!r} of type {field.dataType.simpleString()}. Cast it, or leave it"
                    " out."
                )
            fields.append(made)
        return pa.schema(fields)

    def files(self, table: "DataFrame") -> Sequence[str]:
        """List the files in the plan, also below a cached DataFrame, for which Spark lists none."""
        from py4j.protocol import Py4JError

        leaves, found = _plan_of(table).collectLeaves(), list(table.inputFiles())
        for i in range(leaves.size()):
            with suppress(Py4JError):  # a leaf that has no files
                found += leaves.apply(i).relation().location().inputFiles()
        return [unquote(urlsplit(each).path) for each in found]

    def altered(self, table: "DataFrame") -> Mapping[str, str]:
        """Name the columns that Spark reads from Parquet in another type, such as intervals."""
        from pyspark.sql.pandas.types import from_arrow_schema

        empty = pa.BufferOutputStream()
        pq.write_table(self.schema(table).empty_table(), empty, store_schema=False)
        back = from_arrow_schema(pq.ParquetFile(empty.getvalue()).schema_arrow, True)
        kinds = (
            (own.name, own.dataType.simpleString(), read.dataType.simpleString())
            for own, read in zip(table.schema, back, strict=True)
        )
        return {name: own for name, own, read in kinds if own != read or "void" in own}

    def read(self, files: Sequence[Place]) -> "DataFrame":
        """Read Parquet files; Spark does not keep their order."""
        return self._session.read.parquet(*map(_path, files))

    def select(self, table: "DataFrame", names: Sequence[str]) -> "DataFrame":
        """Project to these columns, which Parquet readers push down."""
        return table.select(*map(_quoted, names))

    def joined(
        self, table: "DataFrame", other: "DataFrame", on: Sequence[str], more: str, rows: int
    ) -> "DataFrame":
        """Join by the columns `on`, under numbered names: Spark takes a dot in a name for a field
        of a struct."""
        left, right = (
            table.toDF(*(f"c{i}" for i in range(len(table.columns)))),
            other.select(*map(_quoted, on), more),
        )
        right = right.toDF(*(f"k{i}" for i in range(len(on))), more)
        same = [
            left[f"c{table.columns.index(name)}"] == right[f"k{i}"] for i, name in enumerate(on)
        ]
        return left.join(right, same).select(*left.columns, more).toDF(*table.columns, more)

    @contextmanager
    def ship(self, shipment: Shipment) -> Iterator[Handle]:
        """Send a shipment as a broadcast variable, which is destroyed at the end."""
        variable = self._session.sparkContext.broadcast(
            pickle.dumps(shipment)
        )  # as bytes: Spark cannot encrypt arrays that it pickles itself
        try:
            yield _Broadcast(variable)
        finally:
            # Also after an error, so that executors drop the run's secret, and Spark deletes its
            # file.
            variable.destroy(blocking=True)

    def summaries(self, table: "DataFrame", job: Job) -> Iterable[bytes]:
        """Run a job on every partition; Spark returns the result of one attempt for each."""
        return [bytes(row[0]) for row in self.flow(table, job, SUMMARY).collect()]

    def flow(self, table: "DataFrame", job: Job, schema: pa.Schema) -> "DataFrame":
        """Run a job on every partition, by mapInArrow."""
        from pyspark.sql.pandas.types import from_arrow_schema

        # because of dots in names, as in `joined`
        numbered = table.toDF(*(f"c{i}" for i in range(len(table.columns))))
        return numbered.mapInArrow(_Named(job, table.columns), from_arrow_schema(schema))

    def ordered_summaries(
        self, table: "DataFrame", by: str, rows: int, job: Job
    ) -> Iterable[bytes]:
        """Run a job on sorted partitions of equal ranges of a uniform column.

        Spark's own sort evaluates the table twice, once to sample it: every label would be drawn
        twice, for nothing.
        """
        from pyspark.sql import functions as f

        if not hasattr(table, "repartitionById"):  # before Spark 4.1
            return self.summaries(table.orderBy(by), job)
        # As many ranges as Spark would choose, but small enough to be sorted in memory, and large
        # enough to be worth a task.
        usual = int(self._session.conf.get("spark.sql.shuffle.partitions") or 200)
        parts = min(-(-rows // FEW), max(usual, -(-rows // MANY)))
        range_ = f.floor((f.col(by).cast("double") / 2.0**64 + 0.5) * parts)
        ranges = table.repartitionById(parts, f.least(range_, f.lit(parts - 1)).cast("int"))
        return self.summaries(ranges.sortWithinPartitions(by), job)

    def capped(
        self, table: "DataFrame", unit: str, by: str, cap: int, mark: str, rows: int
    ) -> "DataFrame":
        """Mark the first `cap` rows of each unit in the order of `by`, by a window function."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        place = f.row_number().over(Window.partitionBy(f.col(_quoted(unit))).orderBy(by))
        return table.withColumn(mark, place <= cap)

    def repeats(self, table: "DataFrame", column: str, rows: int) -> bool:
        """Tell whether a value of a column occurs twice, by one shuffle of the column."""
        return bool(table.groupBy(column).count().filter("count > 1").limit(1).collect())


class _Named:
    """A job as a function for mapInArrow, of which a query plan shows the type only."""

    def __init__(self, job: Job, columns: Sequence[str]) -> None:
        self._job, self._columns = job, list(columns)
        self.__name__ = type(job).__name__

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._job(batch.rename_columns(self._columns) for batch in batches)


def _quoted(name: str) -> str:
    if "`" in name:
        raise InvalidInput(
            f"Expected column names without backticks, which Spark cannot look up, got {name!r}."
            " Rename it."
        )
    return f"`{name}`"


def _check_case(session: "SparkSession", names: Sequence[str]) -> None:
    """Refuse names that Spark takes for the same: it could not read the released table."""
    if str(session.conf.get("spark.sql.caseSensitive")).lower() == "true":
        return
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            raise InvalidInput(
                "Expected column names that differ in more than upper and lower case, which Spark"
                f" does not tell apart, got {other!r} and {name!r}. Rename one, or set"
                " spark.sql.caseSensitive to true."
            )


def _spark_of(df: "DataFrame") -> "SparkSession":
    session = getattr(df, "sparkSession", None)
    if session is None:
        raise InvalidInput(f"Expected a Spark DataFrame, got {type(df).__name__}.")
    return session


def _plan_of(df: "DataFrame") -> Any:
    """Return the analysed plan, which only a classic session shows."""
    try:
        return df._jdf.queryExecution().analyzed()
    except AttributeError:
        raise InvalidInput(
            "Expected a classic Spark session, got a Spark Connect one, which cannot send the run's"
            " secret to its workers privately. Run the release where the driver is, for example"
            " with spark-submit."
        ) from None


def _address(place: Place) -> str:
    """Return an address in Spark's form, whose S3 client uses the scheme s3a."""
    return str(place) if place.local is not None else str(place).replace("s3://", "s3a://", 1)


def _path(place: Place, *, pattern: bool = False) -> str:
    """Return an address for Spark's reader, which takes each for a pattern: what has a meaning
    there, but none in ours, is escaped."""
    return re.sub(r"[{}\\]" if pattern else r"[][{}?*\\]", r"\\\g<0>", _address(place))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Spark's warning about the installed pandas, which a release does not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "PySpark does not yet fully support pandas", FutureWarning
        )
        yield


def _plain_errors() -> AbstractContextManager[None]:
    return plain_errors(_is_of_spark, lambda error: None, "Spark")


def _is_of_spark(error: BaseException) -> bool:
    return type(error).__module__.startswith(("pyspark", "py4j"))
