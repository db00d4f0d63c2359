# SPDX-License-Identifier: Apache-2.0
"""The ledger's contract on a real PostgreSQL, and what is PostgreSQL's own: passwords, several
machines, a server that goes away."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.contract import test_ledger, test_ledger_parts, test_ledger_processes, test_ledger_rows
from tests.contract.test_ledger import charge, kept
from tests.engines import postgres

from labeldp import PrivateLabels
from labeldp.custody import privatize
from labeldp.errors import InvalidInput, LedgerError, MissingExtra
from labeldp.laws import LabelColumns
from labeldp.ledger._database import LedgerUrl
from labeldp.ledger._ledger import Ledger
from labeldp.noise._words import new_run_id

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not()),
]

OF_FILES = {
    "test_run_dir_is_beside_the_ledger",
    "test_a_ledger_is_a_value",
    "test_reading_makes_no_file",
    "test_only_the_owner_can_read",
    "test_default_ledger",
    "test_budgets_that_are_none",
    "test_locations_that_are_none",
    # is refused before any store is asked, as the next three ask none
    "test_nothing_bad_is_charged",
    "test_spent_is_never_less_than_any_row_spent_and_exact_in_one_space",
}


def contract(module: ModuleType) -> dict[str, Callable[..., object]]:
    """The tests of a module that any store must pass; here they get this module's `ledger`."""
    return {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_") and name not in OF_FILES
    }


globals().update(contract(test_ledger) | contract(test_ledger_rows) | contract(test_ledger_parts))
__all__ = ["kept"]  # the fixture that they share


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    """A new database."""
    import sqlalchemy

    name = f"ledger_{new_run_id()}"
    admin = server.format(name="postgres").replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(
        admin, isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.pool.NullPool
    )
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    return server.format(name=name)


@pytest.fixture
def ledger(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("LABELDP_RUNS", str(tmp_path / "runs"))
    return Ledger(url)


# Values and secrets
# --------------------------------------------------------------------------------------------------


def test_a_ledger_of_a_database_is_a_value(ledger: Ledger) -> None:
    receipt = charge(ledger)
    twin = pickle.loads(pickle.dumps(ledger))
    assert twin == ledger
    assert twin.runs()[0].receipt == receipt
    assert Ledger(ledger.location, budget=2.0).location == ledger.location


def test_one_charge_on_several_columns_is_in_the_account_of_each(ledger: Ledger) -> None:
    columns = LabelColumns({"a": [0, 1], "b": [0, 1, 2]})
    labels = {"a": [0, 1, 1, 0], "b": [2, 1, 0, 1]}
    noisy = privatize(
        PrivateLabels(labels, classes=columns, dataset="d", ids=range(4), ledger=ledger),
        columns.law(1.0),
    )
    assert [ledger.spent("d", name) for name in ("a", "b")] == [1.0, 1.0]
    assert ledger.spent("d", columns.names) == 1.0
    assert noisy["b"].looked_up(ledger).privacy.evidence == "proven"
    assert ledger.verify(noisy.receipts) == []


def test_reading_makes_no_tables(ledger: Ledger) -> None:
    assert (
        ledger.exists(),
        ledger.spent("a", "b"),
        ledger.runs(),
        ledger.history(),
        ledger.parts("0" * 32),
    ) == (False, 0, [], [], [])
    with pytest.raises(LedgerError, match="no ledger"):
        ledger.verify()
    assert not ledger.exists()


def test_a_password_is_never_shown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELDP_RUNS", str(tmp_path / "runs"))
    ledger = Ledger(url.replace("labeldp@", "labeldp:s3cr3t@"), budget=1.0)
    receipt = charge(ledger)
    said = [
        repr(ledger),
        str(ledger.location),
        f"{ledger.location!r}",
        repr(receipt),
        str(ledger.history()),
        str(ledger.runs_dir),
    ]
    for bad in (
        lambda: charge(ledger),
        lambda: charge(Ledger(ledger.location, budget=2.0)),
        lambda: ledger.settle(new_run_id(), "x"),
    ):
        with pytest.raises(Exception, match="postgresql") as caught:
            bad()
        said.append(str(caught.value))
    gone = Ledger(url.replace("labeldp@", "labeldp:s3cr3t@").replace("host=/", "host=/nowhere/"))
    with pytest.raises(LedgerError, match="Expected") as unreachable:
        gone.runs()
    said += [
        str(unreachable.value),
        repr(unreachable.value.__cause__),
        repr(unreachable.value.__context__ and None),
    ]
    assert not any("s3cr3t" in text for text in said)
    assert ledger.runs_dir == Ledger(url).runs_dir  # the password is no part of which ledger it is


def test_names_cannot_inject(ledger: Ledger) -> None:
    names = (
        "'; DROP TABLE labeldp_entries; --",
        '"',
        "\\",
        '{"a": 1}',
        "$.dataset",
        "%",
        "%s",
        ":after",
        "{entries}",
        "日本語 🎲",
    )
    for name in names:
        charge(ledger, dataset=name, column=name, identity=name)
        assert ledger.spent(name, name) == 1.0
        assert [run.receipt.dataset for run in ledger.runs(name)] == [name]
        assert ledger.find(name, name, name) is not None
    assert ledger.verify() == []


# Several machines
# --------------------------------------------------------------------------------------------------


def test_eight_processes_lose_nothing_and_never_overspend(ledger: Ledger, url: str) -> None:
    budget, charges = 60.0, 100
    started = [test_ledger_processes.start(url, budget, charges) for _ in range(8)]
    ends = [process.communicate(timeout=300) for process in started]
    assert [error for _, error in ends] == [""] * 8
    answers = [line for out, _ in ends for line in out.split()]
    charged = [answer for answer in answers if answer != "refused"]
    assert (len(answers), len(charged), len(set(charged))) == (800, 600, 600)
    assert {run.run_id for run in ledger.runs()} == set(charged)
    assert (ledger.spent("d", "y"), ledger.remaining("d", "y")) == (60.0, 0.0)
    assert ledger.verify([run.receipt for run in ledger.runs()]) == []


def test_killed_at_any_time_keeps_every_charge_that_returned(ledger: Ledger, url: str) -> None:
    with test_ledger_processes.start(url, 1000.0, 10_000) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline().strip() for _ in range(3)]
        os.kill(process.pid, signal.SIGKILL)
        printed += [line for line in process.stdout.read().split() if len(line) == 32]
    runs = [run.run_id for run in ledger.runs()]
    assert runs[: len(printed)] == printed
    assert len(runs) - len(printed) in (0, 1)
    assert ledger.verify() == []


def test_a_server_that_may_lose_charges_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELDP_RUNS", str(tmp_path / "runs"))
    with postgres.server("-c fsync=off") as server, pytest.raises(LedgerError, match="fsync"):
        charge(Ledger(server.format(name="postgres")))


def test_a_newer_format_is_refused(ledger: Ledger) -> None:
    charge(ledger)
    with ledger._store.writing() as session:
        session.query("UPDATE labeldp_format SET version = 99")
    with pytest.raises(LedgerError, match="format 99"):
        ledger.runs()


def test_without_the_extra_the_message_is_the_command_that_installs_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from labeldp.ledger._ledger import Ledger\n"
        "from labeldp.errors import MissingExtra\n"
        "try: Ledger('postgresql://a:s3cr3t@b/c').runs()\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install 'labeldp[postgres]'" in done.stdout, done.stderr
    assert MissingExtra.__base__ is not None


@pytest.mark.parametrize("bad", ["postgresql://u:p:w@h:x/d", "postgresql://u:s3cr3t@h:port/d"])
def test_urls_that_are_none(bad: str) -> None:
    with pytest.raises(InvalidInput, match="URL") as caught:
        Ledger(bad).runs()
    assert "s3cr3t" not in str(caught.value)


def test_the_url_is_a_value_of_its_own() -> None:
    assert str(LedgerUrl("postgresql+psycopg://u@h/d")) == "postgresql+psycopg://u@h/d"
    assert LedgerUrl("postgresql+psycopg://u:p@h/d").name == LedgerUrl("postgresql://u@h/d").name
