# SPDX-License-Identifier: Apache-2.0
"""Releases on Apache Spark: `release(df, out, spec)` in two passes, and the sessions that the command line starts.

Workers need labeldp in their Python. The run's secrets reach them as a broadcast variable (or, with a key source, only half of them
does), which is destroyed after each pass: they are in no plan, no closure and no log.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from labeldp.errors import InvalidInput, LabelDPError, MissingExtra, ReleaseError
from labeldp.privacy.ledger import Ledger
from labeldp.tables.distributed import ClusterRelease, release_on
from labeldp.tables.jobs import SUMMARY, Handle, Job, Loan
from labeldp.tables.passes import Progress, silent
from labeldp.tables.place import Place
from labeldp.tables.spec import ReleaseSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INSTALL = "pip install 'labeldp[spark]'"
JAVA = "Install Java 17 or newer, for example `apt install openjdk-17-jre-headless`, or set JAVA_HOME."


def release(
    df: "DataFrame", out: object, spec: ReleaseSpec, ledger: Ledger | None = None, *, redraw: bool = False, progress: Progress = silent
) -> "DataFrame":
    """Release a DataFrame whose label column is private; eager.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
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
    pyspark.sql.DataFrame that reads `out`.

    Guarantee
    ---------
    As `labeldp.release`: the same run gives the same rows on every engine, however often tasks are tried again.

    Cost
    ----
    Two passes, the first over ids, label and prior alone. order="keep" moves no rows; the keyed order sorts the table once; a unit's
    cap moves rows to their units once.
    """
    done = release_frame(df, out, spec, ledger, redraw=redraw, progress=progress)
    return _spark_of(df).read.parquet(_path(done.place))


def release_frame(
    df: "DataFrame", out: object, spec: ReleaseSpec, ledger: Ledger | None = None, *, redraw: bool = False, progress: Progress = silent
) -> ClusterRelease:
    """`release`, with receipt and manifest instead of a DataFrame."""
    with _plain_errors():
        return release_on(_Spark(_spark_of(df)), df, out, spec, ledger, redraw=redraw, progress=progress)


def start(master: str | None = None) -> "SparkSession":
    """The session that is running, or a new one: on all cores of this machine, or at `master`."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtra(f"Expected PySpark for engine='spark', which is not installed. {INSTALL}. {JAVA}") from None
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        raise MissingExtra(f"Expected Java for engine='spark', got none. {JAVA}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers take the system's Python, which lacks labeldp
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    options = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(1 << 16),
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    # with a second number tasks are tried again, as on a cluster
    building = SparkSession.builder.appName("labeldp").master(master or f"local[{os.cpu_count()},4]")
    for name, value in options.items():
        building = building.config(name, value)
    session = building.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def read(session: "SparkSession", source: Place) -> "DataFrame":
    """A Parquet file or folder, or a CSV file, as a DataFrame."""
    path = _path(source)
    if source.suffix.lower() in (".csv", ".tsv"):
        raise InvalidInput(f"Expected Parquet for engine='spark', got {source.name}. Convert it, or read it into a DataFrame of your own.")
    return session.read.parquet(path)


@dataclass(frozen=True)
class _Broadcast:
    """The handle that workers fetch a loan with."""

    variable: Any

    def fetch(self) -> Loan:
        loan: Loan = self.variable.value
        return loan


class _Spark:
    """What Spark does for a release."""

    name = "Spark"

    def __init__(self, session: "SparkSession") -> None:
        self._session = session

    def schema(self, table: "DataFrame") -> pa.Schema:
        """As Spark hands rows to Python."""
        from pyspark.sql.pandas.types import to_arrow_schema

        found = to_arrow_schema(table.schema)
        return pa.schema([field.with_type(_plain_time(field.type)) for field in found])

    def select(self, table: "DataFrame", names: Sequence[str]) -> "DataFrame":
        """A projection, which Parquet readers push down."""
        return table.select(*(f"`{name.replace('`', '``')}`" for name in names))

    @contextmanager
    def lend(self, loan: Loan) -> Iterator[Handle]:
        """A broadcast variable, destroyed at the end."""
        try:
            context = self._session.sparkContext
        except Exception:
            raise InvalidInput(
                "Expected a classic Spark session, got a Spark Connect one, which cannot send the run's secret to its workers privately. "
                "Run the release where the driver is, for example with spark-submit."
            ) from None
        variable = context.broadcast(loan)
        try:
            yield _Broadcast(variable)
        finally:
            variable.destroy(blocking=True)

    def summaries(self, table: "DataFrame", job: Job) -> Iterable[bytes]:
        """Of each partition the attempt whose result Spark took."""
        return [bytes(row[0]) for row in self.flow(table, job, SUMMARY).collect()]

    def flow(self, table: "DataFrame", job: Job, schema: pa.Schema) -> "DataFrame":
        """mapInArrow."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return table.mapInArrow(_Named(job), from_arrow_schema(schema))

    def ordered(self, table: "DataFrame", by: str) -> "DataFrame":
        """A range partitioning and a sort of each partition."""
        return table.orderBy(by)

    def capped(self, table: "DataFrame", unit: str, by: str, cap: int, mark: str) -> "DataFrame":
        """A window over each unit's rows."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        place = f.row_number().over(Window.partitionBy(f.col(f"`{unit}`")).orderBy(by))
        return table.withColumn(mark, place <= cap)

    def repeats(self, table: "DataFrame", column: str) -> bool:
        """One shuffle of the ids alone."""
        return bool(table.groupBy(column).count().filter("count > 1").limit(1).collect())


class _Named:
    """A job as the function that Spark wants; what a plan shows of it is its kind."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.__name__ = type(job).__name__

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._job(batches)


def _plain_time(kind: pa.DataType) -> pa.DataType:
    return kind


def _spark_of(df: "DataFrame") -> "SparkSession":
    session = getattr(df, "sparkSession", None)
    if session is None:
        raise InvalidInput(f"Expected a Spark DataFrame, got {type(df).__name__}.")
    return session  # type: ignore[no-any-return]


def _path(place: Place) -> str:
    """As Spark writes addresses: its S3 client calls them s3a."""
    text = str(place)
    return text if place.local is not None else text.replace("s3://", "s3a://", 1)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Spark's errors carry a worker's traceback; what is ours in it is told alone."""
    try:
        yield
    except LabelDPError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark", "py4j")):
            raise
        text = str(error)
        if "No module named 'labeldp'" in text:
            raise ReleaseError("Expected labeldp in the workers' Python, got a worker without it. Install it there.") from None
        raise ReleaseError(
            f"Expected Spark to finish both passes, got {type(error).__name__}. Nothing was published; the same call picks up a charge that "
            "was made. Spark's own log says more."
        ) from error
