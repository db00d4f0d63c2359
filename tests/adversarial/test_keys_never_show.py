# SPDX-License-Identifier: Apache-2.0
"""Secrets are planted and recorded, everything that labeldp writes, says, logs or pickles is
searched for them."""

import base64
import contextlib
import io
import json
import logging
import pickle
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from tests.cli.commands import SENTINEL, run
from tests.runs import open_run, table_pin

import labeldp as ldp
from labeldp.custody._answer import GroupQuestion, answer
from labeldp.custody._encode import RowIds
from labeldp.custody._request import Account, Request, RunSecret, begin, fresh_secret
from labeldp.custody._stream import TableDraw
from labeldp.noise._secrets import Key, KeySource, Secret

RELEASE = bytes.fromhex("f0e1d2c3b4a5968778695a4b3c2d1e0f00112233445566778899aabbccddeeff")
LABELS = np.array(["ill", "well", "healed"])[np.random.default_rng(0).integers(3, size=300)]
IDS = np.arange(300)
LAW = ldp.RandomizedResponse(3, 1.0)
CLASSES = ["ill", "well", "healed"]


def closed(ledger: ldp.Ledger, y: object = LABELS, **facts: object) -> ldp.PrivateLabels:
    given = {"classes": CLASSES, "dataset": "d", "column": "label", "ids": IDS, "ledger": ledger}
    return ldp.PrivateLabels(y, **given | facts)


def forms(secret: bytes) -> list[bytes]:
    """How a secret might be spelled."""
    encoded = base64.b64encode(secret).rstrip(b"=")
    # inside of something longer
    inner = [base64.b64encode(b"\0" * skip + secret)[4:-4] for skip in (1, 2)]
    numbers = ", ".join(map(str, secret)).encode()
    spelled = [
        secret.hex().encode(),
        secret.hex().upper().encode(),
        secret.hex(" ").encode(),
        repr(secret).encode()[2:-1],
    ]
    return [
        secret,
        *spelled,
        encoded,
        encoded.translate(bytes.maketrans(b"+/", b"-_")),
        *inner,
        numbers,
        numbers.replace(b" ", b""),
    ]


class Watch:
    """The secrets that were made, and everything that was said."""

    def __init__(self) -> None:
        self.secrets: set[bytes] = {RELEASE}
        self.kinds: set[str] = set()
        self.said = io.StringIO()

    def note(self, kind: str, secret: bytes) -> None:
        if len(secret) in (16, 32):  # a key id has 8 bytes and is public
            self.secrets.add(bytes(secret))
            self.kinds.add(kind)

    def shown_in(self, data: bytes) -> list[str]:
        return [repr(form[:4]) for secret in self.secrets for form in forms(secret) if form in data]

    def check(self, *folders: Path, private: tuple[str, ...] = ()) -> int:
        """Search the files, but for the private ones, and what was said; the number of files that
        were searched."""
        assert self.shown_in(self.said.getvalue().encode()) == []
        files = [
            path
            for folder in folders
            for path in folder.rglob("*")
            if path.is_file() and not set(path.parts) & set(private)
        ]
        assert {
            str(path): found for path in files if (found := self.shown_in(path.read_bytes()))
        } == {}
        return len(files)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Every secret and key that is made from here on is recorded; every log record, warning and
    print is kept."""
    seen = Watch()
    make_secret, make_key = Secret.__new__, Key.__init__

    def secret(cls: type, *given: object) -> Secret:
        made = make_secret(cls, *given)
        seen.note("secret", made)
        return made

    def key(self: Key, purpose: str, material: bytes) -> None:
        seen.note(purpose, material)
        make_key(self, purpose, material)

    monkeypatch.setattr(Secret, "__new__", secret)
    monkeypatch.setattr(Key, "__init__", key)
    handler, root = logging.StreamHandler(seen.said), logging.getLogger()
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s %(args)s"))
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(seen.said),
        contextlib.redirect_stderr(seen.said),
    ):
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: print(message, file=seen.said)
        yield seen
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "secure" / "release.key"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(RELEASE)
    path.chmod(0o600)
    return f"file:{path}"


@pytest.fixture
def ledger(tmp_path: Path, key: str) -> ldp.Ledger:
    return ldp.Ledger(tmp_path / "ledger" / "ledger.sqlite", budget=9.0, key=key)


RUNS = ("ledger.sqlite.runs", "secure")


def variables(value: object, depth: int = 4) -> str:
    """A value's representation and its fields', as a debugger or an error report shows them."""
    inner = getattr(value, "__dict__", {})
    return repr(value) + (
        " ".join(variables(each, depth - 1) for each in inner.values()) if depth else ""
    )


def with_variables(error: BaseException) -> str:
    """A traceback as tools show it that print each frame's variables; the frames of labeldp
    only."""
    told = traceback.TracebackException.from_exception(error, capture_locals=True)
    kept = [frame for frame in told.stack if "/labeldp/" in frame.filename]
    assert any(frame.locals for frame in kept)
    return str(error) + repr(error) + "".join(f"{frame.name} {frame.locals}" for frame in kept)


def test_the_search_finds_what_is_there(watch: Watch, tmp_path: Path) -> None:
    for form in forms(RELEASE):
        assert watch.shown_in(b"x" + form + b"y")
    long = base64.b64encode(b"four" + RELEASE + b"more")
    assert watch.shown_in(long)
    (tmp_path / "leak").write_bytes(b"key=" + RELEASE.hex().encode())
    with pytest.raises(AssertionError):
        watch.check(tmp_path)


HIDING = ("/labeldp/", "/cryptography/", "/hmac.py", "/base64.py", "/pathlib.py")


@contextlib.contextmanager
def every_variable() -> Iterator[dict[str, str]]:
    """All variables of all frames at every line that runs: what a traceback shows if that line
    raises, by the frame and the name."""
    seen: dict[str, set[str]] = {}
    shown: dict[str, str] = {}

    def at(frame: types.FrameType, event: str, _: object) -> Callable[..., object] | None:
        if not any(part in frame.f_code.co_filename for part in HIDING):
            return None
        if event in ("line", "return", "exception"):
            where = f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}"
            for name, value in list(frame.f_locals.items()):
                with contextlib.suppress(Exception):  # half made: shown by nobody either
                    seen.setdefault(f"{where}.{name}", set()).add(repr(value) + cut(value))
        return at

    former = sys.gettrace()
    sys.settrace(at)
    try:
        yield shown
    finally:
        sys.settrace(former)
        shown.update({name: "\n".join(each) for name, each in seen.items()})


def cut(value: object) -> str:
    """A value as tools show it that shorten bytes and texts before they print them."""
    return repr(value[:20]) + f"{value}" if isinstance(value, bytes | str) else ""


def shown_keys(watch: Watch, shown: dict[str, str]) -> list[str]:
    spelled = {
        form.decode("latin-1")
        for secret in watch.secrets
        for form in (*forms(secret), *forms(secret[:12]))
    }
    return sorted(name for name, text in shown.items() if any(form in text for form in spelled))


@pytest.mark.parametrize("ids", [IDS, [f"row {i}" for i in IDS]], ids=["integers", "texts"])
@pytest.mark.parametrize("source", ["file", "environment", "none"])
def test_no_variable_of_any_frame_shows_a_key(
    watch: Watch,
    ledger: ldp.Ledger,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    ids: list[object],
) -> None:
    monkeypatch.setenv("RELEASE_KEY", base64.b64encode(RELEASE).decode())
    named = {
        "file": str(ledger.key),
        "environment": "env:RELEASE_KEY",
        "none": None,
    }[source]
    record = ldp.Ledger(ledger.location, budget=9.0, key=named)
    law = ldp.PriorSplit(3, 1.0)
    with every_variable() as shown:
        ldp.privatize(
            closed(record, ids=ids, unit=IDS // 2),
            law,
        )
        ldp.aggregate(
            closed(record, dataset="e", ids=ids),
            ldp.aggregates.Vote(3, 1.0, 2),
            IDS % 2,
        )
    assert {"draw", "pin", "aggregate", "secret"} <= watch.kinds and len(shown) > 500
    assert {
        "_words.encryptor.key",
        "_secrets.__init__.material",
        "_request._charge_new.secret",
    } <= shown.keys()
    assert shown_keys(watch, shown) == []


def test_no_variable_shows_a_key_where_a_table_is_released(
    watch: Watch, ledger: ldp.Ledger, tmp_path: Path
) -> None:
    table = pa.table({"id": [f"row {i}" for i in IDS], "y": LABELS})
    pq.write_table(table, tmp_path / "raw.parquet")
    spec = ldp.ReleaseSpec(label="y", classes=CLASSES, epsilon=1.0, id="id", dataset="d")
    with every_variable() as shown:
        ldp.release(tmp_path / "raw.parquet", tmp_path / "out.parquet", spec, ledger)
    assert {"draw", "pin", "secret"} <= watch.kinds and "_stream.charge.charge" in shown
    assert shown_keys(watch, shown) == []


def test_what_is_lent_to_a_worker_is_hidden_and_can_be_sent(ledger: ldp.Ledger) -> None:
    halves = fresh_secret(ldp.Ledger(ledger.location))
    lent, key = pickle.loads(pickle.dumps(halves.for_worker()))
    assert lent == halves.stored and key is None
    assert repr(lent) == repr(lent[:10]) == f"{lent}" == "<secret>"


def test_the_search_of_variables_finds_a_plain_key(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted leak is seen: the tests above can fail."""
    monkeypatch.setattr(Secret, "__repr__", bytes.__repr__)
    with every_variable() as shown:
        ldp.privatize(ldp.PrivateLabels(LABELS, classes=CLASSES), LAW)
    assert "_words.encryptor.key" in shown_keys(watch, shown)


@pytest.mark.parametrize("ids", [IDS, None], ids=["ids", "no ids"])
def test_a_refused_charge_shows_no_label_in_the_doors_frames(
    tmp_path: Path, ids: list[object] | None
) -> None:
    record = ldp.Ledger(tmp_path / "small.sqlite", budget=0.5)
    labels = np.array(["ill", "well"], dtype=object)[IDS % 2]
    query = ldp.aggregates.Histogram(2, 1.0, 2)
    for ask in (
        lambda: ldp.privatize(
            ldp.PrivateLabels(
                labels, classes=["ill", "well"], dataset="d", column="label", ids=ids, ledger=record
            ),
            ldp.RandomizedResponse(2, 1.0),
        ),
        lambda: open_run(
            labels,
            classes=["ill", "well"],
            epsilon=1.0,
            laws={},
            dataset="d",
            ids=ids,
            ledger=record,
        ),
        lambda: answer(
            ldp.PrivateLabels(
                labels, classes=["ill", "well"], dataset="d", column="c", ids=ids, ledger=record
            ),
            GroupQuestion(query=query, groups=IDS // 150),
        ),
    ):
        with pytest.raises(ldp.BudgetExceeded) as caught:
            ask()
        told = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
        kept = {
            f"{frame.name}.{name}": text
            for frame in told.stack
            if "/labeldp/" in frame.filename
            for name, text in frame.locals.items()
        }
        assert any("300 labels of 2 classes, closed" in text for text in kept.values())
        assert [
            name
            for name, text in kept.items()
            if "'ill', 'well', 'ill'" in text or "[0, 1, 0" in text or "[0 1 0" in text
        ] == []


@pytest.mark.parametrize("with_key", [True, False])
def test_privatize(watch: Watch, ledger: ldp.Ledger, tmp_path: Path, with_key: bool) -> None:
    record = ledger if with_key else ldp.Ledger(ledger.location, budget=9.0)
    noisy = ldp.privatize(
        closed(record),
        LAW,
    )
    noisy.save(tmp_path / "noisy.parquet")
    for value in (noisy, record, noisy.receipts[0], noisy.privacy, record.runs(), record.history()):
        print(variables(value))
        (tmp_path / f"{id(value)}.pickle").write_bytes(pickle.dumps(value))
    assert {"draw", "pin", "secret"} <= watch.kinds
    assert watch.check(tmp_path, private=("secure",)) > 8  # the run has settled: its own folder too


def test_fit(watch: Watch, ledger: ldp.Ledger, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(300, 3))
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=2.0, stages=2)
    clone(model)
    model.fit(x, closed(ledger))
    print(variables(model))
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    assert {"draw", "partition", "pin", "secret"} <= watch.kinds
    watch.check(tmp_path, private=("secure",))


def table(path: Path, bad: str | None = None) -> Path:
    labels = LABELS.tolist()
    if bad is not None:
        labels[150] = bad
    pq.write_table(pa.table({"patient": IDS, "status": labels}), path)
    return path


def release(source: Path, ledger: Path, key: str, *more: object) -> tuple[int, str, str]:
    facts = (
        "--label",
        "status",
        "--epsilon",
        1,
        "--classes",
        ",".join(CLASSES),
        "--id",
        "patient",
        "--ledger",
        ledger,
        "--key",
        key,
    )
    return run("release", source, "--out", source.with_name("out.parquet"), *facts, *more)


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("source", ["file", "env"])
def test_release(
    watch: Watch, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, dies: bool
) -> None:
    place = tmp_path / "ledger" / "ledger.sqlite"
    if source == "env":
        monkeypatch.setenv("RELEASE_KEY", RELEASE.hex())
        key = "env:RELEASE_KEY"
    monkeypatch.setenv("LABELDP_DEBUG", "1")
    if dies:
        monkeypatch.setattr(TableDraw, "settle", lambda *_: 1 / 0)
    for _ in range(2):
        code, said, error = release(table(tmp_path / "in.parquet"), place, key, "--json")
        assert (code == 0) is not dies
        print(said, error)
    code, said, error = run("ledger", "history", "--ledger", place, "--json")
    assert {entry["kind"] for entry in json.loads(said)["entries"]} >= {"charge"}
    print(said, error)
    assert {"draw", "order", "pin", "secret"} <= watch.kinds
    assert watch.check(tmp_path, private=RUNS) >= 2
    if not dies:
        watch.check(tmp_path, private=("secure",))


def test_a_charged_runs_folder_holds_one_half_and_nothing_else(
    watch: Watch, ledger: ldp.Ledger, tmp_path: Path
) -> None:
    unfinished = open_run(
        LABELS,
        classes=CLASSES,
        epsilon=1.0,
        laws={},
        dataset="d",
        ids=IDS,
        ledger=ledger,
    )
    unfinished.privatize(np.arange(100), LAW, stage="first")
    print(variables(unfinished))
    folder = ledger.run_dir(unfinished.receipt.run_id)
    stored = (folder / "secret").read_bytes()
    assert stored in watch.secrets
    with pytest.raises(AssertionError, match="secret"):
        watch.check(tmp_path, private=("secure",))
    watch.secrets.remove(stored)
    watch.check(tmp_path, private=("secure",))


def test_a_raw_label_that_is_not_declared_shows_nowhere(
    watch: Watch, ledger: ldp.Ledger, key: str, tmp_path: Path
) -> None:
    bad = LABELS.astype(object)
    bad[7] = SENTINEL
    with pytest.raises(ldp.InvalidInput) as caught:
        closed(ledger, bad)
    print(caught.value, repr(caught.value))
    source = table(tmp_path / "in.parquet", SENTINEL)
    code, said, error = release(source, Path(ledger.location), key)
    assert code == 4
    print(said, error)
    source.unlink()
    assert SENTINEL not in watch.said.getvalue()
    assert not [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and SENTINEL.encode() in path.read_bytes()
    ]
    watch.check(tmp_path, private=RUNS)


def test_values_that_hold_a_secret_neither_show_nor_pickle_it(
    watch: Watch, ledger: ldp.Ledger
) -> None:
    halves = fresh_secret(ledger)
    unfinished = open_run(
        LABELS,
        classes=CLASSES,
        epsilon=1.0,
        laws={},
        dataset="d",
        ids=IDS,
        ledger=ledger,
    )
    streamed = table_pin(LAW, classes=CLASSES, dataset="e", column="y", ledger=ledger)
    held = [
        halves,
        halves.secret,
        halves.stored,
        KeySource.of(ledger.key).fetch(),
        unfinished,
        unfinished._charge,
        streamed,
    ]
    for value in held:
        print(variables(value), f"{value}", f"{value!r}")
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(value)
    watch.check()


def test_errors_show_no_secret_even_with_the_variables_of_every_frame(
    watch: Watch, ledger: ldp.Ledger, tmp_path: Path
) -> None:
    other = tmp_path / "secure" / "other.key"
    other.write_bytes(RELEASE[::-1])
    other.chmod(0o600)
    watch.secrets.add(RELEASE[::-1])
    unfinished = {
        "classes": CLASSES,
        "epsilon": 1.0,
        "laws": {},
        "dataset": "d",
        "ids": IDS,
    }
    open_run(LABELS, **unfinished, ledger=ledger)
    poor = ldp.Ledger(ledger.location, key=ledger.key)

    def over_budget() -> None:
        ldp.privatize(
            closed(poor),
            ldp.RandomizedResponse(3, 50.0),
        )

    def another_secret() -> None:
        open_run(LABELS, **unfinished, ledger=ldp.Ledger(ledger.location, key=other))

    def streamed() -> None:
        pin = table_pin(
            ldp.RandomizedResponse(3, 50.0),
            classes=CLASSES,
            dataset="d",
            column="label",
            ledger=poor,
        )
        pin.add(np.zeros(3, np.int32), ids=np.arange(3))
        pin.charge()

    def repeated_ids() -> None:
        ldp.privatize(closed(ledger, dataset="new", ids=IDS // 2), LAW)

    def interrupted() -> None:
        def pin_of(secret: RunSecret) -> str:
            raise ldp.LedgerError("stop")

        account = Account("third", ledger=ledger, redraw=True)
        begin(
            Request(account.private_column(CLASSES, RowIds.of(IDS)), 1.0, {}, rows="r"),
            account,
            pin_of=pin_of,
        )

    for fails in (over_budget, another_secret, streamed, repeated_ids, interrupted):
        with pytest.raises(ldp.LabelDPError) as caught:
            fails()
        print(fails.__name__, with_variables(caught.value))
    watch.check(tmp_path, private=RUNS)
