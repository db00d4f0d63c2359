# SPDX-License-Identifier: Apache-2.0
"""Addresses: schemes without regard to case, unknown ones refused, and no password in a path, a
message or a log."""

import logging
import traceback
from pathlib import Path

import pytest
from tests.cli.commands import run

import labeldp as ldp
from labeldp.app import stage
from labeldp.ledger._database import LedgerUrl, location_of, runs_folder
from labeldp.noise._secrets import KeySource, create_key_file, destroy_key_file, key_file_id
from labeldp.tables._place import Place

PASSWORD = "pw-4711"
USER = f"user:{PASSWORD}@host/db"
UNKNOWN = [
    f"mysql://{USER}",
    f"MYSQL://{USER}",
    f"x://{USER}",
    f"://{USER}",
    f"postgres://{USER}",
    f"oracle+driver://{USER}",
    Path(f"postgresql://{USER}"),  # of which pathlib makes one slash
    Path(f"mysql://{USER}"),
]
OF_LEDGERS = [f"postgresql://{USER}", f"POSTGRESQL://{USER}", f" PostgreSQL+psycopg://{USER}"]


def released(where):
    spec = ldp.ReleaseSpec("y", [0, 1], 1.0, dataset="d")
    ldp.release(where, where, spec, ldp.Ledger("ledger.db"))


def counted():
    asked = ldp.aggregates.Histogram(2, 1.0, 1)
    return ldp.aggregate(
        ldp.PrivateLabels([0, 1], classes=range(asked.n_classes), noise=ldp.SeededNoise(0)),
        asked,
        [0, 0],
    )


PLACES = {
    "place": Place.of,
    "release": released,
    "noisy labels": lambda where: ldp.privatize(
        ldp.PrivateLabels([0, 1], classes=range(2), noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(2, 1.0),
    ).save(where),
    "noisy labels of a file": ldp.NoisyLabels.load,
    "answer": lambda where: counted().save(where),
    "answer of a file": ldp.aggregates.Aggregate.load,
    "key": lambda where: KeySource(f"file:{where}"),
    "new key": create_key_file,
    "key's id": key_file_id,
    "key's end": destroy_key_file,
    "plan": lambda where: stage.load(where, ldp.Ledger("ledger.db")),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not [path for path in tmp_path.rglob("*") if PASSWORD in str(path)]


def refused(attempt, caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(ldp.InvalidInput) as caught:
        attempt()
    assert PASSWORD not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__cause__ is None
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("address", UNKNOWN, ids=str)
def test_a_ledger_has_no_unknown_address(address, caplog, monkeypatch):
    refused(lambda: ldp.Ledger(address), caplog)
    facts = {"classes": [0, 1], "dataset": "d", "column": "y", "ledger": address}
    refused(lambda: ldp.PrivateLabels([0, 1], **facts), caplog)
    monkeypatch.setenv("LABELDP_RUNS", str(address))
    refused(lambda: runs_folder(location_of("postgresql://user@host/db")), caplog)
    code, out, said = run("ledger", "spent", "--ledger", address)
    assert (code, PASSWORD in out + said) == (4, False)


@pytest.mark.parametrize("address", OF_LEDGERS, ids=str)
def test_a_database_is_known_by_its_scheme_in_any_case(address):
    ledger = ldp.Ledger(address)
    assert PASSWORD not in repr(ledger) + str(ledger.location)
    plain = location_of("postgresql://user@host/db")
    assert location_of(address).name == plain.name
    assert runs_folder(location_of(address)) == runs_folder(plain)
    assert location_of(LedgerUrl(address)) == location_of(address)


@pytest.mark.parametrize("address", [*UNKNOWN, *OF_LEDGERS], ids=str)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_no_place_has_an_unknown_address(place, address, caplog):
    refused(lambda: place(address), caplog)


@pytest.mark.parametrize("place", [*PLACES.values(), ldp.Ledger], ids=[*PLACES, "ledger"])
def test_no_place_has_a_name_with_nul(place, caplog):
    refused(lambda: place("a\0b"), caplog)


@pytest.mark.parametrize("place", ["place", "release", "noisy labels", "answer", "plan"])
def test_bytes_are_no_place(place, caplog):
    refused(lambda: PLACES[place](b"folder/name"), caplog)


def test_a_store_is_known_in_any_case(tmp_path):
    (tmp_path / "t.parquet").touch()
    for scheme in ("file", "FILE", "File"):
        assert Place.of(f"{scheme}://{tmp_path}/t.parquet") == Place.of(tmp_path / "t.parquet")


def test_a_place_of_the_web_is_shown_without_its_password():
    pytest.importorskip("aiohttp")
    assert PASSWORD not in repr(Place.of(f"https://user:{PASSWORD}@example.com/t.parquet"))


def test_a_place_whose_file_system_keeps_a_password_is_shown_without_it():
    import pyarrow.fs as pafs

    web = Place(pafs._MockFileSystem(), f"https://user:{PASSWORD}@example.com/t.parquet")
    assert PASSWORD not in repr(web)
    assert "example.com/t.parquet" in str(web)
