# SPDX-License-Identifier: Apache-2.0
"""The release secret: where it may be, what is refused, and what becomes of a run when one half of
its secret is gone."""

import base64
import hashlib
import hmac
import json
import os
import pickle
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from tests.runs import open_run, table_pin

import labeldp as ldp
from labeldp.custody._request import kept_secret
from labeldp.ledger._run_store import RunStore
from labeldp.noise import _secrets as secrets
from labeldp.noise._secrets import (
    KeySource,
    Secret,
    create_key_file,
    destroy_key_file,
    key_id,
    run_secret,
)
from labeldp.noise._words import derive_key

RELEASE = bytes.fromhex("f0e1d2c3b4a5968778695a4b3c2d1e0f00112233445566778899aabbccddeeff")
OTHER = hashlib.sha256(b"another").digest()
STORED = bytes(range(32))
RUN_ID = "000102030405060708090a0b0c0d0e0f"
LABELS = np.random.default_rng(0).integers(5, size=400)
IDS = np.random.default_rng(1).permutation(10**5)[:400]
LAW = ldp.RandomizedResponse(5, 1.0)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "keys.md"


ASK, ANOTHER = "env:RELEASE_KEY", "env:ANOTHER_KEY"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE_KEY", RELEASE.hex())
    monkeypatch.setenv("ANOTHER_KEY", OTHER.hex())


def key_file(folder: Path, data: bytes = RELEASE, mode: int = 0o600) -> Path:
    path = folder / "release.key"
    path.write_bytes(data)
    path.chmod(mode)
    return path


# The derivation
# --------------------------------------------------------------------------------------------------


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869 with SHA-256, for at most 32 bytes."""
    return hmac.new(hmac.new(salt, secret, "sha256").digest(), info + b"\x01", "sha256").digest()[
        :length
    ]


def test_the_run_secret_is_as_the_page_says() -> None:
    source = KeySource(ASK)
    assert run_secret(STORED, source, RUN_ID) == hkdf(
        RELEASE, STORED, b"labeldp run secret " + RUN_ID.encode(), 32
    )
    assert key_id(RELEASE) == hkdf(RELEASE, bytes(32), b"labeldp release secret id", 8).hex()
    vector = json.loads(
        re.search(r"```json vector\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    )
    assert (
        bytes.fromhex(vector["release secret"]) == RELEASE
        and bytes.fromhex(vector["stored"]) == STORED
    )
    assert vector["run id"] == RUN_ID and vector["key id"] == key_id(RELEASE)
    assert bytes.fromhex(vector["run secret"]) == run_secret(STORED, source, RUN_ID)


# Where it may be
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [RELEASE, RELEASE.hex().encode(), RELEASE.hex().upper().encode() + b"\n"],
    ids=["raw", "hex", "line"],
)
def test_from_a_file(tmp_path, data, monkeypatch):
    path = key_file(tmp_path, data)
    assert KeySource(f"file:{path}").fetch() == KeySource.of(path).fetch() == RELEASE
    monkeypatch.chdir(tmp_path)
    source = KeySource("file:release.key")
    monkeypatch.chdir("/")
    assert source.fetch() == RELEASE  # a worker runs in another folder


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o666])
def test_a_file_that_others_may_read_is_refused(tmp_path, mode):
    path = key_file(tmp_path, mode=mode)
    with pytest.raises(ldp.LedgerError, match=f"chmod 600 {path}"):
        KeySource.of(path).fetch()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"correct horse battery staple 12345",
        b"correct horse battery staple 123",
        RELEASE[:16].hex().encode(),
        RELEASE + b"\n",
        RELEASE.hex().encode() * 2,
        bytes(32),
        b"\x01" * 32,
        b"00" * 32,
        bytes(10_000),
        b"g" * 64,
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path, data):
    with pytest.raises(ldp.LedgerError) as caught:
        KeySource.of(key_file(tmp_path, data)).fetch()
    shown = str(caught.value)
    assert not data or (data.decode("latin-1").strip() not in shown and data.hex() not in shown)


def test_no_ordinary_file(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path / "pipe", tmp_path / "none", tmp_path):
        with pytest.raises(ldp.LedgerError, match=path.name):
            KeySource.of(path).fetch()


@pytest.mark.parametrize(
    "text",
    [
        RELEASE.hex(),
        base64.b64encode(RELEASE).decode(),
        base64.urlsafe_b64encode(b"\xff" * 16 + RELEASE[:16]).decode() + "\n",
    ],
)
def test_from_the_environment(monkeypatch, text):
    monkeypatch.setenv("RELEASE_KEY", text)
    assert len(KeySource("env:RELEASE_KEY").fetch()) == 32


@pytest.mark.parametrize(
    "text", [None, "", "secretword", RELEASE[:16].hex(), base64.b64encode(RELEASE[:31]).decode()]
)
def test_an_environment_that_holds_something_else_is_refused(monkeypatch, text):
    monkeypatch.delenv("RELEASE_KEY") if text is None else monkeypatch.setenv("RELEASE_KEY", text)
    with pytest.raises(ldp.LedgerError, match="RELEASE_KEY") as caught:
        KeySource("env:RELEASE_KEY").fetch()
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "file:",
        "file: ",
        "env:",
        "env:1A",
        "env:A B",
        "hook:package.module:function",
        "vault:x",
        "release.key",
        7,
        None,
        b"file:x",
    ]
    + [
        form(RELEASE)
        for form in (
            bytes.hex,
            lambda b: base64.b64encode(b).decode(),
            lambda b: "env:" + b.hex(),
            lambda b: "file:" + b.hex(),
        )
    ],
)
def test_a_source_of_another_form_is_refused_and_not_shown(text):
    with pytest.raises(ldp.InvalidInput, match="Expected a key source") as caught:
        KeySource.of(text)
    shown = str(caught.value)
    assert RELEASE.hex() not in shown and base64.b64encode(RELEASE).decode() not in shown


# Values
# --------------------------------------------------------------------------------------------------


def test_a_source_is_a_value_without_the_secret(tmp_path):
    ledger = ldp.Ledger(tmp_path / "l", key=key_file(tmp_path))
    assert ledger == ldp.Ledger(tmp_path / "l", key=f"file:{tmp_path}/release.key") and hash(
        ledger
    ) == hash(pickle.loads(pickle.dumps(ledger)))
    assert f"file:{tmp_path}/release.key" in repr(ledger) and ledger.key_source == ledger.key
    assert ldp.Ledger(tmp_path / "l").key_source is None
    with pytest.raises(ldp.InvalidInput, match="key source"):
        ldp.Ledger(tmp_path / "l", key=RELEASE.hex())


def test_a_secret_says_nothing_of_itself():
    secret = Secret(RELEASE)
    assert (
        f"{secret} {secret!r} {secret!s}" == "<secret> <secret> <secret>"
        and "%s" % [secret] == "[<secret>]"
    )
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(secret)
    assert isinstance(KeySource(ASK).fetch(), Secret) and isinstance(
        run_secret(STORED, KeySource(ASK), RUN_ID), Secret
    )
    assert isinstance(run_secret(STORED, None, RUN_ID), Secret)


def test_nothing_is_kept_between_two_calls(monkeypatch):
    source = KeySource(ASK)
    first = run_secret(STORED, source, RUN_ID)
    monkeypatch.setenv("RELEASE_KEY", OTHER.hex())
    assert run_secret(STORED, source, RUN_ID) != first
    assert not [
        name
        for name, value in vars(secrets).items()
        if isinstance(value, bytes | bytearray | dict | list) and name[:2] != "__"
    ]


# Files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_a_new_key_file_is_the_owners_alone(tmp_path, umask):
    path, before = tmp_path / "a" / "b" / "release.key", os.umask(umask)
    try:
        source = create_key_file(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:2]} == {0o700}
    assert key_id(source.fetch()) == source.key_id and path.stat().st_size == 65
    with pytest.raises(ldp.LedgerError, match="never overwritten"):
        create_key_file(path)
    assert key_id(source.fetch()) == source.key_id
    assert create_key_file(tmp_path / "other").key_id != source.key_id


@pytest.mark.parametrize("data", [bytes(32), b"\xff" * 32, b"\0" * 30 + b"\1\2"])
def test_bytes_that_are_obviously_not_random_are_refused(tmp_path, data, monkeypatch):
    monkeypatch.setenv("LABELDP_TEST_SECRET", data.hex())
    for source in (f"file:{key_file(tmp_path, data)}", "env:LABELDP_TEST_SECRET"):
        with pytest.raises(ldp.LedgerError, match="almost always the same one") as told:
            KeySource(source).fetch()
        assert data.hex()[:8] not in str(told.value)


def test_destroying_overwrites_and_removes(tmp_path):
    path = tmp_path / "release.key"
    name = create_key_file(path).key_id
    before = path.read_bytes()
    os.link(path, tmp_path / "second name")
    assert destroy_key_file(path) == name
    assert not path.exists()
    after = (tmp_path / "second name").read_bytes()
    assert (
        len(after) == len(before) and sum(a == b for a, b in zip(after, before, strict=True)) < 16
    )


def test_only_a_key_file_is_destroyed(tmp_path):
    letter, link = tmp_path / "letter", tmp_path / "link"
    letter.write_text("dear all")
    link.symlink_to(key_file(tmp_path))
    for path, said in (
        (letter, "random bytes"),
        (link, "got the link"),
        (tmp_path / "none", "No such file"),
        (tmp_path, "directory"),
    ):
        with pytest.raises(ldp.LedgerError, match=said):
            destroy_key_file(path)
    assert (
        letter.read_text() == "dear all"
        and KeySource.of(tmp_path / "release.key").fetch() == RELEASE
    )
    destroy_key_file(key_file(tmp_path, mode=0o644))  # one that has leaked, too


# Runs
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path):
    return tmp_path / "ledger.sqlite"


def streamed(ledger, **options):
    """A charged run, with what it draws."""
    pin = table_pin(LAW, classes=range(5), dataset="d", column="y", ledger=ledger, **options)
    pin.add(LABELS.astype(np.int32), ids=IDS)
    run = pin.charge()
    return run, run.draw(LABELS.astype(np.int32), ids=IDS)[0].log_likelihood()


def opened(ledger):
    """The same through the door for arrays."""
    run = open_run(
        LABELS,
        classes=range(5),
        epsilon=1.0,
        laws={"n": 1},
        dataset="d",
        column="y",
        ids=IDS,
        ledger=ledger,
    )
    return run, run.partition([0.5, 0.5])


DOORS = pytest.mark.parametrize("door", [streamed, opened])


@DOORS
def test_the_folder_holds_one_half_and_the_name_of_the_other(place, door):
    ledger = ldp.Ledger(place, key=ASK)
    run, _ = door(ledger)
    store = RunStore(ledger.run_dir(run.receipt.run_id))
    assert json.loads(store.read("key")) == {"source": ASK, "key_id": key_id(RELEASE)}
    assert len(store.read("secret")) == 32
    assert kept_secret(ledger, run.receipt.run_id).secret == run_secret(
        store.read("secret"), KeySource(ASK), run.receipt.run_id
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()} == {0o600}


@DOORS
def test_a_run_is_picked_up_with_the_same_noise_wherever_the_secret_has_moved(
    place, tmp_path, door
):
    crashed, first = door(ldp.Ledger(place, key=ASK))
    run, again = door(ldp.Ledger(place, key=key_file(tmp_path)))
    assert run.receipt.run_id == crashed.receipt.run_id
    np.testing.assert_array_equal(again, first)


def charged_alone(place, receipt):
    """Nothing but that one run was ever charged."""
    ledger = ldp.Ledger(place)
    return [(run.run_id, run.state) for run in ledger.runs()] == [
        (receipt.run_id, "charged")
    ] and len(list(ledger.run_dir("0" * 32).parent.iterdir())) == 1


@DOORS
@pytest.mark.parametrize("key", [KeySource(ANOTHER), None], ids=["another", "none"])
def test_under_another_release_secret_it_is_refused(place, door, key):
    crashed, _ = door(ldp.Ledger(place, key=ASK))
    run_id = crashed.receipt.run_id
    with pytest.raises(
        ldp.LedgerError, match=f"{key_id(RELEASE)}.*labeldp ledger repair --abandon {run_id}"
    ) as caught:
        door(ldp.Ledger(place, budget=1.0, key=key))
    assert key is None or f"another release secret than run {run_id} was charged under" in str(
        caught.value
    )
    assert charged_alone(place, crashed.receipt)


@DOORS
def test_without_the_release_secret_it_can_never_be_finished(place, tmp_path, door):
    path = tmp_path / "release.key"
    create_key_file(path)
    ledger = ldp.Ledger(place, budget=2.0, key=path)
    crashed, first = door(ledger)
    destroy_key_file(path)
    with pytest.raises(
        ldp.LedgerError,
        match=r"If the release secret is .* gone.* can never be\s+finished.*repair --abandon",
    ):
        door(ledger)
    assert charged_alone(place, crashed.receipt)
    ledger.abandon(crashed.receipt.run_id, "the release secret was destroyed")
    create_key_file(path)
    run, second = door(ledger)
    assert run.receipt.run_id != crashed.receipt.run_id and not np.array_equal(first, second)
    assert RunStore(ledger.run_dir(crashed.receipt.run_id)).read("secret") is None


@DOORS
def test_a_source_that_fails_for_a_moment_does_not_cost_a_second_charge(place, door):
    """At each of the reads of a request that resumes a run."""
    ledger = ldp.Ledger(place, budget=2.0, key=ASK)
    crashed, _ = door(ledger)
    read, calls = KeySource.fetch, []

    def counted(source, fails_at=0):
        calls.append(source)
        if len(calls) == fails_at:
            raise ldp.LedgerError("down for a moment")
        return read(source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeySource, "fetch", counted)
        door(ledger)
    n = len(calls)
    assert n == {streamed: 3, opened: 1}[door]
    for fails_at in range(1, n + 1):
        calls.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                KeySource, "fetch", lambda source, at=fails_at: counted(source, fails_at=at)
            )
            with pytest.raises(ldp.LedgerError, match="for a moment"):
                door(ledger)
    assert charged_alone(place, crashed.receipt)
    assert door(ledger)[0].receipt.run_id == crashed.receipt.run_id


def test_a_source_that_fails_charges_nothing(place, monkeypatch):
    monkeypatch.delenv("RELEASE_KEY")
    for door in (streamed, opened):
        with pytest.raises(ldp.LedgerError, match="RELEASE_KEY, which is not set"):
            door(ldp.Ledger(place, key=ASK))
    assert not ldp.Ledger(place).runs() and not place.with_name(f"{place.name}.runs").exists()


def test_runs_that_need_another_secret_do_not_stop_other_requests(place):
    crashed, _ = streamed(ldp.Ledger(place, budget=3.0, key=ASK))
    for key in (None, ANOTHER):
        run, _ = streamed(ldp.Ledger(place, key=key), facts={"round": str(key)})
        assert run.receipt.run_id != crashed.receipt.run_id


def test_a_crashed_run_from_before_there_was_a_key_is_picked_up(place):
    crashed, first = streamed(ldp.Ledger(place))
    run, again = streamed(ldp.Ledger(place, key=ASK))
    assert run.receipt.run_id == crashed.receipt.run_id
    np.testing.assert_array_equal(again, first)


def windows(folder: Path) -> set[bytes]:
    """Every 32 bytes, raw or spelled out, that stand anywhere in the files of a folder."""
    found = set()
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        found.update(data[i : i + 32] for i in range(len(data) - 31))
        found.update(
            bytes.fromhex(text.decode())
            for text in re.findall(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", data)
        )
    return found


@pytest.mark.parametrize("key", [None, ASK])
def test_after_settling_the_noise_cannot_be_computed_even_with_the_release_secret(place, key):
    ledger = ldp.Ledger(place, key=key)
    run, drawn = streamed(ledger)
    run_id, source = run.receipt.run_id, None if key is None else KeySource(key)
    wanted = kept_secret(ledger, run_id).secret

    def recovered():
        release = None if source is None else source.fetch()
        return [
            w
            for w in windows(place.parent)
            if wanted
            == (
                w
                if release is None
                else hkdf(release, w, b"labeldp run secret " + run_id.encode(), 32)
            )
        ]

    # while it is charged, the folder and the release secret give the noise: this search finds it
    assert len(recovered()) == 1
    run.settle("sha256:0")
    assert recovered() == [] and drawn is not None
    assert not {"secret", "pin"} & {path.name for path in ledger.run_dir(run_id).iterdir()}


def test_settling_overwrites_what_it_removes(place, tmp_path):
    ledger = ldp.Ledger(place, key=ASK)
    run, _ = streamed(ledger)
    folder, before = ledger.run_dir(run.receipt.run_id), {}
    for name in ("secret", "pin"):
        os.link(folder / name, tmp_path / name)
        before[name] = (folder / name).read_bytes()
    run.settle("sha256:0")
    for name, data in before.items():
        after = (tmp_path / name).read_bytes()
        assert (
            len(after) == len(data) and sum(a == b for a, b in zip(after, data, strict=True)) < 16
        )


def test_before_settling_the_noise_cannot_be_computed_without_the_release_secret(place):
    ledger = ldp.Ledger(place, key=ASK)
    run, _ = streamed(ledger)
    run_id = run.receipt.run_id
    wanted = kept_secret(ledger, run_id).secret
    found = windows(place.parent)
    assert wanted not in found and RELEASE not in found
    for guess in (bytes(32), STORED, OTHER):
        assert not any(
            hkdf(guess, w, b"labeldp run secret " + run_id.encode(), 32) == wanted
            for w in list(found)[:2000]
        )
    facts = run.facts.public | {"run_id": run_id}
    stored = RunStore(ledger.run_dir(run_id)).read("secret")
    assert derive_key(stored, purpose="pin", facts=facts).material("Pin") != derive_key(
        wanted, purpose="pin", facts=facts
    ).material("Pin")


def test_a_repeat_of_what_has_settled_needs_no_key(place, tmp_path):
    path = tmp_path / "release.key"
    create_key_file(path)
    facts = {"classes": range(5), "dataset": "d", "column": "label", "ids": IDS}
    labels = ldp.PrivateLabels(LABELS, **facts, ledger=ldp.Ledger(place, key=path))
    first = ldp.privatize(labels, LAW)
    destroy_key_file(path)
    for ledger in (ldp.Ledger(place), ldp.Ledger(place, key=path)):
        again = ldp.privatize(ldp.PrivateLabels(LABELS, **facts, ledger=ledger), LAW)
        np.testing.assert_array_equal(again.log_likelihood(), first.log_likelihood())
    assert len(ldp.Ledger(place).runs()) == 1


def test_a_damaged_note_of_the_key_is_refused(place):
    ledger = ldp.Ledger(place, key=ASK)
    run, _ = streamed(ledger)
    RunStore(ledger.run_dir(run.receipt.run_id)).write("key", b"{")
    with pytest.raises(ldp.LedgerError, match="id of a release secret"):
        streamed(ledger)
