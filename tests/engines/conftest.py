# SPDX-License-Identifier: Apache-2.0
"""A Spark session and a Ray cluster for all tests that need one."""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# the tests' own jobs are imported there
WORKERS_PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


OF_THE_ENGINES = (
    "ignore::DeprecationWarning:ray.*",
    "ignore::FutureWarning:ray.*",
    "ignore::DeprecationWarning:pyspark.*",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
"""What the engines warn about themselves, sockets that they leave open among it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Only here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in OF_THE_ENGINES:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(scope="session")
def spark_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark's driver, executors and event log write."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session")
def spark(spark_logs: Path) -> Iterator[Any]:
    """Two executors, processes of their own, that log all that they do; a task is tried four
    times."""
    session = pytest.importorskip("pyspark.sql", reason="needs labeldp[spark]").SparkSession
    log4j = spark_logs / "log4j2.properties"
    events, local = spark_logs / "events", spark_logs / "local"
    events.mkdir()
    log4j.write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.file.ref = file\nappender.file.type ="
        " File\nappender.file.name = file\nappender.file.fileName ="
        f" {spark_logs}/log-${{sys:PID:-driver}}.txt\nappender.file.layout.type ="
        " PatternLayout\nappender.file.layout.pattern = %d %p %c: %m%n%ex\nlogger.spark.name ="
        " org.apache.spark.api.python\nlogger.spark.level = debug\nlogger.sql.name ="
        " org.apache.spark.sql\nlogger.sql.level = debug\n"
    )
    java = f"-Dlog4j2.configurationFile=file:{log4j}"
    options = {
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{events}",
        "spark.local.dir": str(local),
        "spark.io.encryption.enabled": "true",
        "spark.sql.shuffle.partitions": "3",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.processTreeMetrics.enabled": "false",
        "spark.worker.cleanup.enabled": "false",
        "spark.sql.session.timeZone": "Asia/Tokyo",
    }
    patch = pytest.MonkeyPatch()
    patch.setenv("PYSPARK_PYTHON", sys.executable)
    patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    patch.setenv("PYTHONPATH", WORKERS_PATH)
    patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    patch.setenv("SPARK_WORKER_DIR", str(spark_logs / "work"))
    building = session.builder.master("local-cluster[2,1,1024]").appName("labeldp tests")
    for name, value in options.items():
        building = building.config(name, value)
    made = building.getOrCreate()
    yield made
    made.stop()
    patch.undo()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """Two workers."""
    found = pytest.importorskip("ray", reason="needs labeldp[ray]")
    pytest.importorskip("ray.data", reason="needs labeldp[ray]")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns
    # of 15 by default, beside another full load a worker's imports take minutes
    patch.setenv("RAY_worker_niceness", "0")
    patch.setenv("PYTHONPATH", WORKERS_PATH)
    found.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    found.data.DataContext.get_current().enable_progress_bars = False
    yield found
    found.shutdown()
    patch.undo()
