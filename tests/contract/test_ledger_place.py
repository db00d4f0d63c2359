# SPDX-License-Identifier: Apache-2.0
"""Where a ledger may lie and how it is named: network file systems are refused where they can be
told, and passwords are never shown."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import LogisticRegression

import labeldp
from labeldp.aggregates import Histogram
from labeldp.app import _aggregate as app_aggregate
from labeldp.app import stage
from labeldp.app import train as app_train
from labeldp.custody._aggregation import aggregate_batches, aggregate_best
from labeldp.errors import InvalidInput, LedgerError
from labeldp.learn import NoiseCluster, ProportionClassifier
from labeldp.ledger import _database as ledger_place
from labeldp.ledger._database import LedgerUrl, network_kind, runs_folder
from labeldp.ledger._ledger import Ledger
from labeldp.papers.ghazi2021 import RepeatAndSelect
from labeldp.tables._evidence import read_noisy

MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw,vers=4.2
41 40 254:1 / /home/anna/scratch rw - xfs /dev/vdb rw
42 27 0:42 / /mnt/with\\040space rw - cifs //server/share rw
43 27 0:43 / /mnt/s3 rw - fuse.s3fs s3fs rw
44 27 0:44 / /mnt/ssh rw - fuse.sshfs anna@server: rw
45 27 0:45 / /mnt/disk rw - fuseblk /dev/vdc rw
46 27 0:46 / /mnt/twice rw - nfs server:/x rw
47 46 254:3 / /mnt/twice rw - ext4 /dev/vdd rw
48 27 0:48 / /mnt/vm rw - virtiofs host rw
49 27 0:49 / /mnt/container rw - overlay overlay rw
broken line
50 27
51 27 0:51 / /mnt/lustre rw master:2 propagate_from:1 - lustre 10.0.0.1@tcp:/fs rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", None),
        ("/var/lib", None),
        ("/home", "nfs4"),
        ("/home/anna", "nfs4"),
        ("/homes", None),
        ("/home/anna/scratch/deep", None),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/s3", "fuse.s3fs"),
        ("/mnt/ssh/x/y", "fuse.sshfs"),
        ("/mnt/disk", None),
        ("/mnt/twice/x", None),
        ("/mnt/vm", None),
        ("/mnt/container", None),
        ("/mnt/lustre/a", "lustre"),
    ],
)
def test_network_file_systems_are_told_from_disks(folder: str, kind: str | None) -> None:
    assert network_kind(folder, MOUNTS.splitlines()) == kind


def test_a_ledger_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ledger_place,
        "_kind_at",
        lambda folder: "nfs4" if folder == str(tmp_path.resolve()) else None,
    )
    ledger = Ledger(tmp_path / "deep" / "ledger.sqlite")
    with pytest.raises(LedgerError, match=r"network file system \(nfs4\).*postgresql://") as caught:
        ledger.set_budget("d", "y", 1.0)
    assert str(ledger.location) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


PASSWORDS = ["s3cr3t", "s3/cr3t", "s3@cr3t", "s3?cr3t", "s3:cr3t", "s3#cr3t", "s3%40cr3t"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_no_part_of_a_password_is_shown(password: str) -> None:
    ledger = Ledger(f"postgresql://anna:{password}@db.example/ledger?sslmode=require")
    for text in (repr(ledger), str(ledger.location), str(ledger.runs_dir), f"{ledger.location}"):
        assert "s3" not in text.replace(str(Path.home()), "") and "cr3t" not in text
    assert "anna:***@db.example/ledger?sslmode=require" in repr(ledger)
    asked = LedgerUrl(
        "postgresql://db/ledger?user=anna"
        f"&password={password.replace('@', '').replace('?', '')}&sslmode=require"
    )
    assert "cr3t" not in str(asked) and str(asked).endswith("&sslmode=require")


URLS = [
    f"postgresql+psycopg://anna:{password}@db.example/ledger?sslmode=require"
    for password in PASSWORDS
] + [
    f"postgresql://db/ledger?user=anna&Password={password}&sslmode=require"
    for password in ("s3cr3t", "s3@cr3t", "s3%40cr3t")
]


@pytest.mark.parametrize("url", URLS)
def test_no_pickle_holds_a_password(url: str) -> None:
    """What is unpickled is the same ledger, and asks the environment for the password."""
    ledger = Ledger(url, budget=1.0)
    for thing in (ledger, ledger.location):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert b"cr3t" not in pickle.dumps(thing, protocol)
    assert b"cr3t" not in repr(ledger).encode()
    again = pickle.loads(pickle.dumps(ledger))
    assert again.runs_dir == ledger.runs_dir and again.budget == 1.0
    made = pytest.importorskip("sqlalchemy").make_url(again.location.url)
    assert (made.password, made.query.get("password"), made.query["sslmode"], made.database) == (
        None,
        None,
        "require",
        "ledger",
    )
    assert made.drivername == url.split(":")[0] and "anna" in (
        made.username,
        made.query.get("user"),
    )
    for kept in (copy.copy(ledger), copy.deepcopy(ledger)):
        assert kept == ledger and "cr3t" in kept.location.url  # within a process it goes on working


def test_a_ledger_of_a_database_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [
        "postgresql://anna@db/a",
        "postgresql://anna:x@db/a",
        "postgresql+psycopg://anna:y@db/a",
        "postgresql://anna@db/b",
    ]
    folders = [runs_folder(LedgerUrl(url)) for url in urls]
    assert len(set(folders)) == 2
    assert folders[0] == folders[1] == folders[2] != folders[3]
    monkeypatch.setenv("LABELDP_RUNS", str(tmp_path))
    inside = [runs_folder(LedgerUrl(url)) for url in urls]
    assert {folder.parent for folder in inside} == {tmp_path}
    assert len(set(inside)) == 2
    assert runs_folder(Path("/x/ledger.sqlite")) == Path("/x/ledger.sqlite.runs")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("postgresql:/x", "Expected"),
        ("mysql://a@b/c", "Expected"),
        ("sqlite:///x", "Expected"),
        ("s3://bucket/x", "Expected"),
        ("postgresql://a\nb", "Expected"),
        (":memory:", "location"),
        ("", "location"),
        (" ", "location"),
        (None, "location"),
        (5, "location"),
    ],
)
def test_locations_that_are_none_are_refused(bad: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Ledger(bad)


# Given by its path
# --------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(400, 2))
Y = (X[:, 0] > 0).astype(int)
TABLE = pa.table({"id": range(400), "x": X[:, 0], "y": Y, "g": np.arange(400) % 4})
RR = labeldp.RandomizedResponse(2, 1.0)
SPEC = labeldp.ReleaseSpec("y", [0, 1], 1.0, "rr", id="id", dataset="d")
NAMED = {"classes": [0, 1], "dataset": "d"}
FITTED = {"epsilon": 1.0, "random_state": 0}


def labels(ledger: Any) -> labeldp.PrivateLabels:
    return labeldp.PrivateLabels(Y, **NAMED, column="label", ledger=ledger)


def staged(folder: Path, ledger: Any) -> None:
    assert (
        stage.plan(folder / "plan", SPEC, (0.5, 0.5), ledger=ledger).ledger
        == stage.load(folder / "plan", ledger).ledger
    )
    stage.release(
        stage.load(folder / "plan", ledger), folder / "t.parquet", 1, folder / "one.parquet"
    )
    assert stage.status(stage.load(folder / "plan", ledger))["next"] == 2
    stage.close(stage.load(folder / "plan", ledger))


def read(folder: Path, ledger: Any) -> None:
    labeldp.release(folder / "t.parquet", folder / "noisy.parquet", SPEC, Ledger(ledger))
    assert read_noisy(folder / "noisy.parquet", ledger=ledger).privacy.evidence == "proven"


def best(folder: Path, ledger: Any) -> None:
    tries = [(Histogram(2, 1.0, 4), np.arange(400) % 4)]
    aggregate_best(
        labels(ledger),
        tries,
        lambda found: float(found.values.max()),
        tuning=RepeatAndSelect(3),
    )


TAKE_A_LEDGER = {
    "privatize": lambda folder, ledger: labeldp.privatize(labels(ledger), RR),
    "aggregate": lambda folder, ledger: labeldp.aggregate(
        labels(ledger), Histogram(2, 1.0, 4), np.arange(400) % 4
    ),
    "aggregate_best": best,
    "aggregate_batches": lambda folder, ledger: aggregate_batches(
        TABLE, Histogram(2, 1.0, 4), label="y", group="g", **NAMED, ledger=ledger
    ),
    "release": lambda folder, ledger: labeldp.release(
        folder / "t.parquet", folder / "noisy.parquet", SPEC, ledger
    ),
    "release of groups": lambda folder, ledger: app_aggregate.aggregate(
        folder / "t.parquet",
        folder / "counts.parquet",
        app_aggregate.AggregateSpec("y", "g", [0, 1], 1.0, dataset="d"),
        ledger,
    ),
    "train": lambda folder, ledger: app_train.train(
        folder / "t.parquet",
        folder / "model",
        app_train.TrainSpec("y", 1.0, id="id", learn=app_train.Learning("linear"), **NAMED),
        ledger,
    ),
    "stages": staged,
    "read_noisy": read,
    "LabelDPClassifier": (
        lambda folder, ledger: labeldp.LabelDPClassifier(LogisticRegression(), **FITTED).fit(
            X, labels(ledger)
        )
    ),
    "NoiseCluster": (
        lambda folder, ledger: NoiseCluster(n_clusters=4, **FITTED).fit(X, labels(ledger))
    ),
    "ProportionClassifier": (
        lambda folder, ledger: ProportionClassifier(n_clusters=4, **FITTED).fit(X, labels(ledger))
    ),
}


@pytest.mark.filterwarnings("ignore::labeldp.errors.LabelDPWarning")
@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("entry", TAKE_A_LEDGER)
def test_a_ledger_may_be_given_by_its_path(tmp_path: Path, entry: str, kind: Any) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    TAKE_A_LEDGER[entry](tmp_path, kind(tmp_path / "led.db"))
    assert Ledger(tmp_path / "led.db").runs("d")


@pytest.mark.parametrize(
    "entry",
    sorted(set(TAKE_A_LEDGER) - {"stages", "read_noisy"}),
)
def test_what_is_no_ledger_is_refused_in_words(tmp_path: Path, entry: str) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet")
    with pytest.raises(InvalidInput, match="Expected a ledger, or its path, got int"):
        TAKE_A_LEDGER[entry](tmp_path, 7)


def test_labels_are_looked_up_in_an_open_ledger(tmp_path: Path) -> None:
    place = tmp_path / "led.db"
    noisy = labeldp.privatize(labels(place), RR)
    assert noisy.looked_up(Ledger(place)).privacy.recorded
    for given in (str(place), place):
        with pytest.raises(InvalidInput, match=r"Expected a ledger, got .*labeldp\.Ledger\("):
            noisy.looked_up(given)
