# SPDX-License-Identifier: Apache-2.0
"""Releases on a real Spark with executors of their own."""

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.engines.cluster_contract import Contract, by_label, files_below, watch
from tests.engines.test_engines_agree import read, spec_of, table, write
from tests.runs import table_pin

from labeldp.app._release import release
from labeldp.errors import InvalidInput, LabelDPWarning, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.tables import spark as on_spark
from labeldp.tables._place import Place
from labeldp.tables._spec import ReleaseSpec
from labeldp.tables.engines._cluster import PinJob

__all__ = ["watch"]
pytestmark = pytest.mark.engines


class OnSpark:
    engine = on_spark._Spark

    def __init__(self, session: Any, folder: Path) -> None:
        self.session, self.folder = session, folder

    def release(self, source: Path, out: Path, spec: ReleaseSpec, ledger: Ledger) -> Any:
        frame = on_spark.read(self.session, Place.of(source))
        return on_spark.release_frame(frame.coalesce(3), out, spec, ledger)

    def logs(self) -> list[Path]:
        return list(files_below(self.folder))


class TestSpark(Contract):
    @pytest.fixture
    def cluster(self, spark: Any, spark_logs: Path) -> OnSpark:
        return OnSpark(spark, spark_logs)


def test_columns_of_many_types_pass_unchanged(spark: Any, tmp_path: Path) -> None:
    n = 100
    rows = pa.table(
        {
            "id": np.arange(n),
            "label": pa.array(np.arange(n) % 2 == 0),
            "when": pa.array(
                [datetime(2024, 1, 1, 0, i % 60) for i in range(n)], pa.timestamp("us", "UTC")
            ),
            "local time": pa.array(
                [datetime(2024, 7, 1, i % 24) for i in range(n)], pa.timestamp("us")
            ),
            "day": pa.array([date(2024, 1, 1 + i % 28) if i % 3 else None for i in range(n)]),
            "price": pa.array([Decimal(f"{i}.25") for i in range(n)], pa.decimal128(12, 2)),
            "a.b c": pa.array([f"text {i}" for i in range(n)]),
            "raw": pa.array([bytes([i]) for i in range(n)]),
            "small": pa.array(np.arange(n), pa.int8()),
            "list": pa.array([[float(i), None] for i in range(n)], pa.list_(pa.float32())),
            "map": pa.array([[("k", i)] for i in range(n)], pa.map_(pa.string(), pa.int32())),
            "struct": pa.array([{"x": i, "t": datetime(2024, 1, 1)} for i in range(n)]),
        }
    )
    source = write(rows, tmp_path / "in", 2)
    for order, unit in (("shuffle", None), ("keep", None), ("shuffle", "a.b c")):
        out, ledger = tmp_path / f"{order}{unit}", Ledger(tmp_path / f"{order}{unit}.db")
        spec = ReleaseSpec(
            label="label",
            classes=[False, True],
            epsilon=1.0,
            id="id",
            dataset="d",
            order=order,
            unit=unit,
        )
        released = on_spark.release(spark.read.parquet(str(source)), out, spec, ledger)
        assert released.count() == n
        found = read(out).sort_by("id")
        for name in rows.schema.names:
            if name != "label":
                assert found[name].to_pylist() == rows[name].to_pylist(), name
        assert found.schema.field("when").type == pa.timestamp("us", "UTC")
        assert found.schema.field("local time").type == pa.timestamp("us")
        assert found.schema.field("label").type == pa.bool_()


def test_a_column_that_spark_keeps_to_itself_is_named(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("select 1 as id, 0 as label, interval 3 months as span")
    spec = ReleaseSpec(label="label", classes=[0, 1], epsilon=1.0, id="id", dataset="d")
    with pytest.raises(InvalidInput, match="'span' of type interval"):
        on_spark.release(frame, tmp_path / "out", spec, Ledger(tmp_path / "ledger.db"))


def test_a_plan_shows_the_job_and_nothing_of_it(
    spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from labeldp.tables._spec import law_of
    from labeldp.tables.engines._cluster import Shipment, Work
    from labeldp.tables.formats._table import LabelCodec, Shape

    spec, schema = spec_of(), pa.schema([("id", pa.int64()), ("label", pa.int32())])
    pin = table_pin(
        law_of(spec, 10),
        classes=spec.classes,
        dataset="d",
        column="label",
        ledger=Ledger(Path("/nowhere/ledger.db")),
    )
    engine = on_spark._Spark(spark)
    with on_spark._quiet(), engine.ship(Shipment(pin.for_workers())) as handle:
        work = Work(
            pin.facts, spec, Shape(schema, LabelCodec(spec.classes, "label", pa.int32()), 0), handle
        )
        job = PinJob(work, Place.of("/nowhere/out"))
        engine.flow(
            spark.range(3).selectExpr("id", "cast(id as int) label"), job, job.schema
        ).explain(True)
    said = capsys.readouterr().out
    assert "PinJob" in said
    assert "secret" not in said.lower() and "class" not in said.lower()


def test_the_command_line(spark: Any, tmp_path: Path) -> None:
    from tests.cli.commands import run

    source = write(table(1000), tmp_path / "visits", 2)
    facts = (
        "--label",
        "label",
        "--epsilon",
        1,
        "--classes",
        ",".join(map(str, range(10))),
        "--engine",
        "spark",
    )
    more = ("--id", "id", "--out", tmp_path / "out", "--ledger", tmp_path / "ledger.db")
    code, said, error = run("release", source, *facts, *more)
    assert code == 0, error
    assert "1,000 rows" in said and "Dataset 'visits'" in said
    assert pq.read_table(tmp_path / "out").num_rows == 1000
    code, _, error = run("release", source, *facts, *more[2:])
    assert code == 4 and "Expected a column that names each row" in error


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "1 as Age, 2 as age",
            "that differ in more than upper and lower case, .* got 'Age' and 'age'",
        ),
        ("time'12:00:00' as at", r"reads from Parquet, got 'at' of type time\(6\)"),
    ],
)
def test_what_spark_could_not_read_again_is_refused_before_the_charge(
    spark: Any, tmp_path: Path, columns: str, message: str
) -> None:
    ledger, spec = (
        Ledger(tmp_path / "ledger.db"),
        ReleaseSpec(label="label", classes=[0, 1], epsilon=1.0, id="id", dataset="d"),
    )
    try:
        frame = spark.sql(f"select 1 as id, 0 as label, {columns}")
    except Exception as error:
        pytest.skip(f"this Spark lacks the type: {type(error).__name__}")
    with pytest.raises(InvalidInput, match=message):
        on_spark.release(frame, tmp_path / "out", spec, ledger)
    assert list(ledger.runs()) == []


def test_a_label_in_the_paths_is_refused_before_the_charge(spark: Any, tmp_path: Path) -> None:
    ledger, keys, named = (
        Ledger(tmp_path / "ledger.db"),
        by_label(tmp_path / "keys", "hive"),
        by_label(tmp_path / "named", None),
    )
    frame = spark.read.parquet(str(keys))
    one = spark.read.option("basePath", str(keys)).parquet(str(keys / "label=1"))
    frames = [frame, frame.filter("id > 1").cache(), frame.join(spark.range(400), "id"), one]
    for given in frames:
        with pytest.raises(InvalidInput, match="got 'label' as a partition's key"):
            on_spark.release(given, tmp_path / "out", spec_of(order="keep"), ledger)
    classes = spark.read.parquet(*map(str, named.iterdir()))
    with pytest.raises(InvalidInput, match="named like a class"):
        on_spark.release(classes, tmp_path / "out", spec_of(), ledger)
    assert ledger.runs() == []
    assert on_spark.release(classes, tmp_path / "out", spec_of(order="keep"), ledger).count() == 400


def test_a_plan_that_spark_calls_non_deterministic_is_refused_before_the_charge(
    spark: Any, tmp_path: Path
) -> None:
    from pyspark.sql import functions as f

    ledger = Ledger(tmp_path / "ledger.db")
    frame = spark.read.parquet(str(write(table(400), tmp_path / "in", 4))).select("id", "label")
    numbered = frame.repartition(8).withColumn("n", f.monotonically_increasing_id())
    for given in (numbered, numbered.cache(), frame.withColumn("u", f.expr("uuid()"))):
        with pytest.raises(InvalidInput, match=r"calls non-deterministic.*df\.localCheckpoint\(\)"):
            on_spark.release(given, tmp_path / "out", spec_of(), ledger)
    assert ledger.runs() == []
    assert (
        on_spark.release(
            numbered.localCheckpoint(), tmp_path / "out", spec_of(id="n"), ledger
        ).count()
        == 400
    )


def test_rows_that_depend_on_their_evaluation_are_told_with_the_cure(
    spark: Any, tmp_path: Path
) -> None:
    frame = spark.read.parquet(str(write(table(400), tmp_path / "in", 4))).repartition(7).limit(100)
    with pytest.raises(
        ReleaseError,
        match=r"in both passes.*limit\(\).*after a repartition.*df\.localCheckpoint\(\)",
    ):
        on_spark.release(frame, tmp_path / "out", spec_of(), Ledger(tmp_path / "ledger.db"))
    kept = on_spark.release(
        frame.localCheckpoint(), tmp_path / "out", spec_of(), Ledger(tmp_path / "other.db")
    )
    assert kept.count() == 100


def test_a_type_that_spark_reads_from_parquet_otherwise_is_named_before_the_charge(
    spark: Any, tmp_path: Path
) -> None:
    columns = (
        "id, cast(id % 2 as int) as label, interval 3 days as span, array(interval 2 hours) as"
        " spans, 'x' as text"
    )
    frame = spark.range(50).selectExpr(*columns.split(", "), "null as void")
    ledger, spec = (
        Ledger(tmp_path / "ledger.db"),
        ReleaseSpec(label="label", classes=[0, 1], epsilon=1.0, id="id", dataset="d"),
    )
    with pytest.raises(
        InvalidInput, match=r"'span' \(interval day -> INT64\), 'spans' .*, 'void' \(void"
    ):
        on_spark.release_frame(frame, tmp_path / "out", replace(spec, strict=True), ledger)
    assert ledger.runs() == []
    with pytest.warns(LabelDPWarning, match="in another type"):
        done = on_spark.release_frame(frame, tmp_path / "out", spec, ledger)
    assert done.unchanged == ("id", "text")
    read_back = spark.read.parquet(str(tmp_path / "out"))
    same = [
        name
        for name, kind in read_back.dtypes
        if dict(frame.dtypes)[name] == kind and name != "label"
    ]
    assert same == ["id", "text"]


def test_names_of_folders_are_no_patterns(spark: Any, tmp_path: Path) -> None:
    other = table(50)
    write(other, tmp_path / "out1", 1)
    source, ledger = write(table(100), tmp_path / "in{1}", 2), Ledger(tmp_path / "ledger.db")
    released = on_spark.release(
        on_spark.read(spark, Place.of(source)), tmp_path / "out[1]", spec_of(), ledger
    )
    assert released.count() == 100


def test_folders_below_a_pattern_are_columns(spark: Any, tmp_path: Path) -> None:
    for day in (1, 2):
        write(table(100).slice(50 * day - 50, 50), tmp_path / "in {1}" / f"day={day}", 1)
    done = release(
        tmp_path / "in {1}" / "day=[12]*",
        tmp_path / "out",
        spec_of(),
        Ledger(tmp_path / "ledger.db"),
        engine="spark",
    )
    assert "day" in done.unchanged and set(read(tmp_path / "out")["day"].to_pylist()) == {1, 2}
