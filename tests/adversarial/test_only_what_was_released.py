# SPDX-License-Identifier: Apache-2.0
"""Nothing is trained on as noisy but what was drawn: raw labels under a release's name, changed
copies, forged facts."""

import copy
import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from tests.cli.commands import run
from tests.files import read, write

import labeldp as ldp
from labeldp._hash import SetDigest
from labeldp.evidence._noisy import as_drawn
from labeldp.laws import law_from_dict
from labeldp.receipt import Receipt
from labeldp.tables._evidence import read_noisy
from labeldp.tables._release import guarantee
from labeldp.tables.formats._table import draw_salt, drawn_in_all, drawn_words

N = 300
FORMS = ["csv", "parquet", "folder"]


def raw_table(n: int = N) -> pa.Table:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n)
    return pa.table({"id": np.arange(n) + 100, "y": (x > 0).astype(np.int64), "x": x})


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return "" if request.param == "folder" else f".{request.param}"


class Shop:
    """A raw table and its release, with a ledger of their own."""

    def __init__(self, folder: Path, form: str, **more: Any) -> None:
        self.folder, self.form = folder, form
        self.ledger = ldp.Ledger(folder / "ledger.db")
        self.raw, self.out = folder / f"raw{form}", folder / f"pub{form}"
        write(raw_table(), self.raw)
        spec = ldp.ReleaseSpec(
            **({"label": "y", "classes": [0, 1], "epsilon": 0.5, "id": "id", "dataset": "d"} | more)
        )
        self.done = ldp.release(self.raw, self.out, spec, self.ledger)
        self.manifest = Path(str(self.done.manifest_path))

    def put(self, table: pa.Table) -> Path:
        """Another table under the release's name."""
        if self.out.is_dir():
            shutil.rmtree(self.out)
        return write(table, self.out)

    def train(self, *more: object, source: Path | None = None) -> tuple[int, str]:
        """Exit code and what was said."""
        out = self.folder / f"model-{len(list(self.folder.iterdir()))}"
        code, said, wrong = run(
            "train",
            source or self.out,
            "--label",
            "y",
            "--out",
            out,
            "--ledger",
            self.ledger.location,
            "--json",
            *more,
        )
        return code, said + wrong


@pytest.fixture
def shop(tmp_path: Path, form: str) -> Shop:
    return Shop(tmp_path, form)


def refused(shop: Shop, source: Path | None = None) -> None:
    """By every reader, whatever it is told, and nobody is told to go on without epsilon."""
    spent = shop.ledger.spent("d", "y")
    with pytest.raises(ldp.InvalidInput, match="has drawn"):
        read_noisy(source or shop.out)
    with pytest.raises(ldp.InvalidInput, match="has drawn"):
        read_noisy(source or shop.out, "y", ledger=shop.ledger)
    with pytest.raises(ldp.InvalidInput, match="has drawn"):
        read_noisy(shop.raw, released=source or shop.out)
    for more in ((), ("--epsilon", 0.5, "--classes", "0,1")):
        code, said = shop.train(*more, source=source)
        assert (
            code == 4
            and "paid for" not in said
            and "eave it out" not in said
            and "has drawn" in said
        )
    assert shop.ledger.spent("d", "y") == spent


def test_the_release_itself_is_proven(shop: Shop) -> None:
    noisy = read_noisy(shop.out, ledger=shop.ledger)
    assert (
        noisy.privacy == ldp.PrivacySpent(0.5, 0.0, "row", recorded=True, secure=True)
        and noisy.privacy.evidence == "proven"
    )
    code, said = shop.train()
    assert code == 0 and json.loads(said)["evidence"] == "proven"
    code, said = shop.train("--epsilon", 0.5)
    assert code == 4 and "proven and paid for. Leave it out" in said


def test_raw_labels_under_a_released_name_are_refused(shop: Shop) -> None:
    shop.put(raw_table())
    refused(shop)


def test_raw_labels_in_a_released_arrow_table_are_refused(shop: Shop) -> None:
    table = read(shop.out)
    place = table.column_names.index("y")
    true = dict(zip(raw_table()["id"].to_pylist(), raw_table()["y"].to_pylist(), strict=True))
    column = pa.array([true[i] for i in table["id"].to_pylist()], table.schema.field("y").type)
    shop.put(table.set_column(place, table.schema.field("y"), column))
    refused(shop)
    if shop.form:
        shop.manifest.unlink()
        if shop.form == ".parquet":
            refused(shop)  # by what the file says of itself


def test_a_manifest_beside_a_raw_table_proves_nothing(shop: Shop) -> None:
    shutil.copy(shop.manifest, shop.folder / f"{shop.raw.name}.manifest.json")
    refused(shop, shop.raw)
    with pytest.raises(ldp.InvalidInput, match="has drawn"):
        read_noisy(write(raw_table(), shop.folder / f"other{shop.form}"), manifest=shop.manifest)


def test_rows_that_repeat_or_are_missing_are_refused(shop: Shop) -> None:
    table = read(shop.out)
    for changed in (
        table.slice(1),
        pa.concat_tables([table, table.slice(0, 1)]),
        pa.concat_tables([table, table]),
    ):
        shop.put(changed)
        refused(shop)


@pytest.mark.parametrize("law", ["rr", "subset"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_single_change_is_found(
    tmp_path_factory: pytest.TempPathFactory, law: str, data: st.DataObject
) -> None:
    folder, shop = _shop_of(tmp_path_factory, law)
    table = pq.read_table(shop.out)
    name = data.draw(st.sampled_from(["y", "id", *(["y__evidence"] if law == "subset" else [])]))
    row = data.draw(st.integers(0, N - 1))
    values = table[name].to_pylist()
    others: dict[str, Any] = {
        "y": [c for c in range(4) if c != values[row]],
        "id": [0, -1, values[row - 1], 10**18],
        "y__evidence": None,
    }
    new = (
        bytes([values[row][0] ^ data.draw(st.integers(1, 255))])
        if others[name] is None
        else data.draw(st.sampled_from(others[name]))
    )
    values[row] = new
    kind = table.schema.field(name).type
    changed = table.set_column(table.column_names.index(name), name, pa.array(values, kind))
    order = data.draw(st.sampled_from(["as it is", "sorted", "turned"]))
    changed = (
        changed.sort_by("x")
        if order == "sorted"
        else changed.take(np.arange(N)[::-1])
        if order == "turned"
        else changed
    )
    changed = changed.drop_columns(["x"]) if data.draw(st.booleans()) else changed
    ending = data.draw(st.sampled_from([".parquet", ".csv"])) if law == "rr" else ".parquet"
    with pytest.raises(ldp.InvalidInput, match="has drawn"):
        read_noisy(write(changed, folder / f"changed{ending}"), manifest=shop.manifest)
    if ending == ".parquet":
        with pytest.raises(ldp.InvalidInput):
            read_noisy(folder / "changed.parquet")


_SHOPS: dict[str, tuple[Path, Shop]] = {}


def _shop_of(factory: pytest.TempPathFactory, law: str) -> tuple[Path, Shop]:
    if law not in _SHOPS:
        folder = factory.mktemp(law)
        _SHOPS[law] = folder, Shop(folder, ".parquet", classes=range(4), law=law)
    return _SHOPS[law]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(
    "law", [ldp.RandomizedResponse(4, 1.0), ldp.SubsetSelection(4, 1.0)], ids=["rr", "subset"]
)
def test_any_single_change_in_a_table_of_noisy_labels_is_found(
    law: ldp.Law, data: st.DataObject
) -> None:
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            np.arange(60) % 4, classes=range(law.n_classes), ids=np.arange(60), noise=None
        ),
        law,
    )
    table = noisy.to_table()
    name, row = data.draw(st.sampled_from(["id", "evidence_0"])), data.draw(st.integers(0, 59))
    values = table[name].to_pylist()
    values[row] = (
        values[row] + 1000
        if name == "id"
        else bytes([values[row][0] ^ data.draw(st.integers(1, 255)), *values[row][1:]])
    )
    changed = table.set_column(
        table.column_names.index(name), name, pa.array(values, table.schema.field(name).type)
    )
    with pytest.raises(ldp.InvalidInput, match=f"in row {row}:"):
        ldp.NoisyLabels.from_table(changed)


def test_raw_labels_set_into_a_table_of_noisy_labels_are_refused(tmp_path: Path) -> None:
    raw = np.arange(200) % 4
    noisy = ldp.privatize(ldp.PrivateLabels(raw, classes=range(4)), ldp.RandomizedResponse(4, 0.5))
    bytes_ = pa.array([int(code).to_bytes(4, "little") for code in raw], pa.binary(4))
    table = noisy.to_table().set_column(1, "evidence_0", bytes_)
    with pytest.raises(ldp.InvalidInput, match="were changed"):
        ldp.NoisyLabels.from_table(table)
    pq.write_table(table, tmp_path / "n.parquet")
    with pytest.raises(ldp.InvalidInput, match="were changed"):
        ldp.NoisyLabels.load(tmp_path / "n.parquet")


def test_facts_that_were_edited_are_refused(shop: Shop) -> None:
    """A smaller epsilon, another unit or law in manifest or metadata: what was drawn is bound to
    them."""
    facts = json.loads(shop.manifest.read_text())
    for change in (
        {"receipt": facts["receipt"] | {"epsilon": 0.01}},
        {"receipt": facts["receipt"] | {"unit": "person"}},
        {"law": facts["law"] | {"epsilon": 0.01}},
        {"classes": facts["classes"][::-1]},
        {"stage": "stage-1"},
    ):
        shop.manifest.write_text(json.dumps(facts | change))
        with pytest.raises(ldp.LabelDPError):
            read_noisy(shop.out)
        assert shop.train()[0] != 0


# Forging
# --------------------------------------------------------------------------------------------------


def forge(shop: Shop, **receipt: object) -> None:
    """Raw labels, and facts in manifest and metadata that say they were drawn: no digest can
    tell."""
    facts = json.loads(shop.manifest.read_text())
    facts["receipt"] |= receipt
    said = Receipt.from_dict(facts["receipt"])
    facts |= {"dataset": said.dataset, "guarantee": guarantee(said, law_from_dict(facts["law"]))}
    table = raw_table()
    codes = table["y"].to_numpy()
    total, parts = [], []
    for start in range(0, N, 100 if shop.form == "" else N):
        part = table.slice(start, 100 if shop.form == "" else N)
        digest = SetDigest()
        digest.update(
            drawn_words(
                draw_salt(facts), part["id"].to_numpy(), codes[start : start + len(part)], None
            )
        )
        total.append(digest.hexdigest())
        own = {
            name: facts[name]
            for name in (
                "format",
                "kind",
                "label",
                "classes",
                "evidence",
                "id",
                "law",
                "receipt",
                "stage",
            )
        }
        parts.append(
            part.replace_schema_metadata(
                {b"labeldp": json.dumps(own | {"drawn": total[-1]}).encode()}
            )
        )
    facts["digests"]["drawn"] = drawn_in_all(total)
    if shop.form == "":
        shutil.rmtree(shop.out)
        shop.out.mkdir()
        for i, part in enumerate(parts):
            pq.write_table(part, shop.out / f"part-{i:05d}.parquet")
    else:
        write(parts[0], shop.out)
    shop.manifest.write_text(json.dumps(facts))


@pytest.mark.parametrize("manifest", [True, False])
def test_forged_facts_are_refused_where_a_ledger_is_at_hand(shop: Shop, manifest: bool) -> None:
    forge(shop)
    if not manifest and shop.form != ".csv":
        shop.manifest.unlink()
    # what a digest alone cannot tell
    assert (read_noisy(shop.out).hard_codes() == raw_table()["y"].to_numpy()).all()
    with pytest.raises(ldp.InvalidInput, match="as the ledger names it"):
        read_noisy(shop.out, ledger=shop.ledger)
    for more in ((), ("--epsilon", 0.5, "--classes", "0,1")):
        code, said = shop.train(*more)
        assert code == 4 and "as the ledger names it" in said and "paid for" not in said


@pytest.mark.parametrize(
    "lie",
    [
        {"epsilon": 0.01},
        {"unit": "person"},
        {"dataset": "other"},
        {"charged_at": "2020-01-01T00:00:00+00:00"},
    ],
)
def test_forged_receipts_are_refused_where_a_ledger_is_at_hand(
    shop: Shop, lie: dict[str, object]
) -> None:
    forge(shop, **lie)
    with pytest.raises(ldp.LedgerError, match="changed after the charge"):
        read_noisy(shop.out, ledger=shop.ledger)
    assert shop.train()[0] != 0


LIES: dict[str, dict[str, Any]] = {
    "classes in another order": {"classes": [1, 0]},
    "rows without ids": {"id": None},
    "another stage and law": {"stage": "x", "law": ldp.RandomizedResponse(2, 8.0).to_dict()},
    "another stage": {"stage": "stage-9"},
}


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_a_manifest_that_lies_about_the_released_file_is_refused(shop: Shop, lie: str) -> None:
    """The file is the one that was released, byte for byte, and the manifest no longer says what
    was drawn: it is believed by nobody."""
    facts = json.loads(shop.manifest.read_text()) | LIES[lie]
    del facts["digests"]["drawn"]
    shop.manifest.write_text(json.dumps(facts))
    with pytest.raises(ldp.InvalidInput):
        read_noisy(shop.out, ledger=shop.ledger)
    assert shop.train()[0] == 4
    assert verify(shop)[0] == 7


def test_one_draw_does_not_become_two_by_another_name_of_its_stage(shop: Shop) -> None:
    once = read_noisy(shop.out, ledger=shop.ledger)
    other = shop.folder / f"copy{shop.form}"
    shutil.copytree(shop.out, other) if shop.form == "" else shutil.copy(shop.out, other)
    facts = json.loads(shop.manifest.read_text()) | {"stage": "again"}
    del facts["digests"]["drawn"]
    manifest = shop.folder / "copy.json"
    manifest.write_text(json.dumps(facts))
    with pytest.raises(ldp.InvalidInput, match=r"law, stage and guarantee|in two parts"):
        ldp.concat([once, read_noisy(other, manifest=manifest)])


def test_copies_of_what_the_ledger_knows_are_proven_by_it(shop: Shop) -> None:
    table = read(shop.out).sort_by("x").drop_columns(["x"]).replace_schema_metadata(None)
    for ending in (".csv", ".parquet"):
        copy = write(table, shop.folder / f"copy{ending}")
        assert (
            read_noisy(copy, manifest=shop.manifest, ledger=shop.ledger).privacy.evidence
            == "proven"
        )
    if shop.form == "":
        # by its SHA-256
        assert read_noisy(next(shop.out.iterdir()), ledger=shop.ledger).privacy.evidence == "proven"


def test_what_another_ledger_does_not_know_is_not_recorded(shop: Shop, tmp_path: Path) -> None:
    other = ldp.Ledger(tmp_path / "of-others.db")
    noisy = read_noisy(shop.out, ledger=other)
    assert not noisy.privacy.recorded and noisy.privacy.evidence == "not recorded"
    code, said = shop.train("--ledger", other.location)
    assert code == 0 and json.loads(said)["evidence"] == "not recorded"
    assert not other.exists()


def test_models_say_what_a_ledger_knows_of_their_receipts(
    tmp_path: Path, drawn: tuple[Any, ...]
) -> None:
    ledger, noisy, X, _ = drawn
    other, model = ldp.Ledger(tmp_path / "other.db"), ldp.LabelDPClassifier(LogisticRegression())
    privacy = [
        model.fit(X, labels).privacy_.evidence
        for labels in (noisy.looked_up(ledger), noisy, noisy.looked_up(other))
    ]
    assert privacy == ["proven", "proven", "not recorded"]
    forged = noisy.to_table()
    facts = json.loads(forged.schema.metadata[b"labeldp"])
    facts["blocks"][0]["receipt"]["epsilon"] = 0.1
    with pytest.raises(ldp.InvalidInput, match="were changed"):
        ldp.NoisyLabels.from_table(forged.replace_schema_metadata({b"labeldp": json.dumps(facts)}))
    with pytest.raises(ldp.LedgerError, match="changed after the charge"):
        with_block(noisy, receipt=replace(noisy.receipts[0], epsilon=0.1)).looked_up(ledger)


# Changed in memory
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[ldp.Ledger, ldp.NoisyLabels, Any, Any]:
    """A ledger, labels that it has charged and drawn, features and the raw labels."""
    table = raw_table()
    X, y = table["x"].to_numpy()[:, None], table["y"].to_numpy()
    ledger = ldp.Ledger(tmp_path / "l.db")
    given = {"dataset": "d", "column": "label", "ids": table["id"].to_numpy(), "ledger": ledger}
    labels = ldp.PrivateLabels(y, classes=range(2), **given)
    noisy = ldp.privatize(labels, ldp.RandomizedResponse(2, 1.0))
    return ledger, noisy, X, y


def with_block(noisy: ldp.NoisyLabels, **changes: Any) -> ldp.NoisyLabels:
    return replace(noisy, blocks=(replace(noisy.blocks[0], **changes),))


CHANGES: dict[str, Any] = {
    "raw labels": lambda noisy, y: with_block(noisy, outputs=y.astype(np.int32)),
    "smaller epsilon": lambda noisy, y: with_block(noisy, law=ldp.RandomizedResponse(2, 0.1)),
    "other rows": lambda noisy, y: with_block(noisy, rows=noisy.blocks[0].rows[::-1].copy()),
    "other ids": lambda noisy, y: replace(noisy, ids=noisy.ids[::-1].copy()),
    "another stage": lambda noisy, y: with_block(noisy, stage="other"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_labels_changed_in_memory_are_never_proven(
    drawn: tuple[Any, ...], change: str, tmp_path: Path
) -> None:
    ledger, noisy, X, y = drawn
    changed = CHANGES[change](noisy, y)
    stored = tmp_path / "changed.parquet"
    changed.save(stored)
    for each in (
        changed,
        changed[:200],
        ldp.concat([changed[:150], changed[150:]]),
        ldp.NoisyLabels.load(stored),
    ):
        assert each.privacy.evidence == "declared, not proven"
        model = ldp.LabelDPClassifier(LogisticRegression(), random_state=0)
        assert model.fit(X[: len(each)], each, ids=each.ids).privacy_.declared
        with pytest.raises(ldp.LedgerError, match="changed after the draw"):
            each.looked_up(ledger)


def test_what_is_chosen_of_drawn_labels_stays_proven(
    drawn: tuple[Any, ...], tmp_path: Path
) -> None:
    ledger, noisy, _, _ = drawn
    noisy.save(tmp_path / "noisy.parquet")
    kept = [
        noisy,
        noisy[::-2],
        noisy.by_id(noisy.ids[::-1]),
        noisy.measurable,
        ldp.concat([noisy[150:], noisy[:150]]),
        noisy.looked_up(ledger),
        ldp.NoisyLabels.load(tmp_path / "noisy.parquet"),
        pickle.loads(pickle.dumps(noisy)),
    ]
    for each in kept:
        assert each.privacy.evidence == each.looked_up(ledger).privacy.evidence == "proven"


def test_outputs_cannot_be_written_over(drawn: tuple[Any, ...]) -> None:
    _, noisy, _, y = drawn
    for some in (
        noisy,
        noisy[5:],
        noisy[np.arange(10)],
        pickle.loads(pickle.dumps(noisy)),
        copy.deepcopy(noisy),
    ):
        with pytest.raises(ValueError, match="read-only"):
            some.blocks[0].outputs[:] = 0
    ids = np.arange(len(y))
    named = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(2), ids=ids), ldp.RandomizedResponse(2, 1.0)
    )
    ids[0] = 7  # the caller's own array stays the caller's, and what was drawn stays what it was
    assert named.ids[0] == 0


def test_no_flag_makes_what_was_drawn_writable(drawn: tuple[Any, ...], tmp_path: Path) -> None:
    _, noisy, _, y = drawn
    noisy.save(tmp_path / "noisy.parquet")
    sided = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(2), ids=[f"r{i}" for i in range(len(y))]),
        ldp.RRWithPrior(2, 1.0),
        prior=np.tile([0.7, 0.3], (len(y), 1)),
    )
    empty = noisy[:0]
    some = (
        noisy,
        noisy[5:],
        noisy[::-2],
        noisy.by_id(noisy.ids[::-1]),
        pickle.loads(pickle.dumps(noisy)),
        sided,
        sided[::2],
        empty,
    )
    for each in (
        *some,
        copy.deepcopy(noisy),
        ldp.concat([noisy[:9], noisy[9:]]),
        ldp.NoisyLabels.load(tmp_path / "noisy.parquet"),
    ):
        block = each.blocks[0]
        for array in (block.outputs, block.rows, each.ids, *block.side.values()):
            for writable in (array, array[:], array.view(), array.base):
                if isinstance(writable, np.ndarray):
                    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
                        writable.flags.writeable = True
    assert sided.blocks[0].side
    # copied once
    assert np.shares_memory(noisy.measurable.blocks[0].outputs, noisy.blocks[0].outputs)


def test_labels_passed_off_as_drawn_are_refused_by_what_the_run_has_kept(
    drawn: tuple[Any, ...],
) -> None:
    ledger, noisy, X, y = drawn
    with pytest.raises(ldp.LedgerError, match="changed after the draw"):
        as_drawn(with_block(noisy, outputs=y.astype(np.int32))).looked_up(ledger)
    ldp.LabelDPClassifier(LogisticRegression(), random_state=0).fit(X, noisy, ids=noisy.ids)


def test_a_smaller_epsilon_is_refused_by_the_charge_where_the_run_has_kept_no_labels(
    shop: Shop,
) -> None:
    noisy = read_noisy(shop.out, ledger=shop.ledger)
    assert noisy[::2].looked_up(shop.ledger).privacy.evidence == "proven"
    with pytest.raises(ldp.LedgerError, match="changed after the draw"):
        with_block(noisy, law=ldp.RandomizedResponse(2, 0.1)).looked_up(shop.ledger)
    raw = with_block(noisy, outputs=1 - noisy.blocks[0].outputs)
    assert raw.looked_up(shop.ledger).privacy.evidence == "declared, not proven"


def test_a_charge_behind_labels_cannot_be_dropped_unseen(drawn: tuple[Any, ...]) -> None:
    _, noisy, _, _ = drawn
    other = ldp.privatize(
        ldp.PrivateLabels([0, 1, 0], classes=range(2)), ldp.RandomizedResponse(2, 1.0)
    ).receipts
    assert (
        replace(noisy, behind=other).privacy.declared and replace(noisy, behind=()).privacy.declared
    )


@pytest.mark.parametrize("cap", [1, 3])
def test_fits_of_every_kind_of_run_are_looked_up_as_proven(tmp_path: Path, cap: int) -> None:
    """Stages, held-out rows, priors and units: what the ledger compares is what was drawn."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = (X[:, 0] > 0) + (X[:, 1] > 0)
    ledger, people = ldp.Ledger(tmp_path / "l.db"), np.arange(600) // cap
    model = ldp.LabelDPClassifier(LogisticRegression(), epsilon=3.0, stages=2, random_state=0).fit(
        X,
        ldp.PrivateLabels(
            y,
            classes=[0, 1, 2],
            dataset="d",
            column="label",
            unit=people,
            max_rows_per_unit=cap,
            ledger=ledger,
        ),
    )
    assert len({block.stage for block in model.noisy_labels_.blocks}) == 3
    assert (
        model.noisy_labels_.looked_up(ledger).privacy == model.privacy_
        and model.privacy_.evidence == "proven"
    )


# Nothing proves it
# --------------------------------------------------------------------------------------------------


def test_a_release_that_lost_its_manifest_is_not_noised_again_unnoticed(shop: Shop) -> None:
    facts = shop.manifest.read_bytes()
    shop.manifest.unlink()
    if shop.form != ".csv":
        # it says so itself
        assert shop.train("--epsilon", 1, "--classes", "0,1", "--dataset", "again")[0] == 4
    bare = shop.folder / f"bare{shop.form}"
    shutil.copytree(shop.out, bare) if shop.form == "" else shutil.copy(shop.out, bare)
    code, said = shop.train("--epsilon", 1, "--classes", "0,1", "--dataset", "again", source=bare)
    assert code == 4 and shop.ledger.spent("again", "y") == 0
    assert shop.form != ".csv" or "whose manifest is gone" in said
    shop.manifest.write_bytes(facts)
    assert shop.train()[0] == 0


def test_what_nothing_proves_is_refused_and_told_how_to_be_declared(shop: Shop) -> None:
    copy = write(
        read(shop.out).replace_schema_metadata(None).drop_columns(["x"]),
        shop.folder / f"copy{shop.form}",
    )
    with pytest.raises(ldp.InvalidInput, match=r"without manifest or metadata.*law="):
        read_noisy(copy)
    with pytest.raises(ldp.InvalidInput, match="without manifest or metadata"):
        read_noisy(shop.out, released=copy)
    code, said = shop.train("--released", copy)
    assert code == 4 and "law=" in said


def test_a_model_is_not_trained_for_a_link_that_it_cannot_replace(tmp_path: Path) -> None:
    shop = Shop(tmp_path, ".csv")
    (tmp_path / "there").mkdir()
    for target in ("there", "nowhere"):
        (tmp_path / f"to-{target}").symlink_to(target)
        given = (
            "train",
            shop.raw,
            "--label",
            "y",
            "--out",
            tmp_path / f"to-{target}",
            "--ledger",
            shop.ledger.location,
        )
        code, _, wrong = run(*given, "--epsilon", 1, "--classes", "0,1", "--dataset", "of the link")
        assert code == 5 and "new or empty folder" in " ".join(wrong.split())
    assert shop.ledger.spent("of the link", "y") == 0.0


def test_another_column_of_a_released_table_is_raw(shop: Shop) -> None:
    table = read(shop.out)
    shop.put(table.append_column("other", pa.array(["a", "b"] * (N // 2))))
    with pytest.raises(ldp.InvalidInput, match="Expected a released column"):
        read_noisy(shop.out, "other")
    out = shop.folder / "model-of-other"
    given = (
        "train",
        shop.out,
        "--label",
        "other",
        "--out",
        out,
        "--ledger",
        shop.ledger.location,
        "--json",
    )
    assert run(*given)[0] == 4  # it asks for epsilon
    code, said, _ = run(*given, "--epsilon", 1, "--classes", "a,b", "--dataset", "o", "--id", "id")
    assert (
        code == 0
        and json.loads(said)["trained_on"] == "labels that labeldp drew from raw ones"
        and shop.ledger.spent("o", "other") == 1.0
    )


@pytest.mark.parametrize("form", [".csv", ".parquet"])
def test_some_rows_are_trained_on_with_the_original_beside_them(tmp_path: Path, form: str) -> None:
    shop = Shop(tmp_path, form)
    # raw labels, which are not read
    part = write(raw_table().slice(20, 200), tmp_path / f"part{form}")
    code, said = shop.train("--released", shop.out, source=part)
    facts = json.loads(said)
    assert (
        code == 0
        and facts["rows"] == 200
        and facts["evidence"] == "proven"
        and facts["trained_on"] == "released table"
    )
    assert facts["guarantee"]["epsilon"] == 0.5
    known = read_noisy(shop.out)
    found = read_noisy(part, released=shop.out)
    assert (found.ids.astype(int) == np.arange(120, 320)).all()
    place = {int(name): i for i, name in enumerate(known.ids)}
    np.testing.assert_array_equal(
        found.hard_codes(), known.hard_codes()[[place[i] for i in range(120, 320)]]
    )


# Declared
# --------------------------------------------------------------------------------------------------


def test_foreign_labels_are_declared_by_their_law(tmp_path: Path, form: str) -> None:
    rng, table = np.random.default_rng(1), raw_table()
    flipped = np.where(rng.random(N) < 0.25, 1 - table["y"].to_numpy(), table["y"].to_numpy())
    names = np.array(["no", "yes"])
    source = write(table.set_column(1, "y", pa.array(names[flipped])), tmp_path / f"foreign{form}")
    law = ldp.RandomizedResponse(2, float(np.log(3)))
    noisy = read_noisy(source, "y", law=law, classes=["no", "yes"], id="id")
    order = np.argsort(noisy.ids.astype(int))
    assert (noisy.hard()[order] == names[flipped]).all() and noisy.classes == ("no", "yes")
    spent = noisy.privacy
    assert (spent.epsilon, spent.declared, spent.recorded, spent.evidence) == (
        law.epsilon,
        True,
        False,
        "declared, not proven",
    )
    again = ldp.NoisyLabels.from_table(noisy.to_table())
    assert again.privacy == spent and again.receipts[0].declared
    with pytest.raises(ldp.InvalidInput, match="twice"):
        noisy.combine(again)


def test_a_release_is_not_declared_beside_itself(shop: Shop) -> None:
    law = ldp.RandomizedResponse(2, 0.5)
    for more in ({}, {"manifest": shop.manifest}, {"released": shop.out}):
        with pytest.raises(ldp.InvalidInput, match="Leave law= out"):
            read_noisy(shop.out if not more else shop.raw, "y", law=law, **more)


def test_declared_labels_in_python() -> None:
    law = ldp.RandomizedResponse(3, 1.0)
    noisy = ldp.NoisyLabels.from_labels(
        ["c", "a", "a"], law, ["a", "b", "c"], unit="person", max_rows_per_unit=2
    )
    assert noisy.hard().tolist() == ["c", "a", "a"] and noisy.privacy == ldp.PrivacySpent(
        2.0, 0.0, "person", False, True, declared=True
    )
    assert "declared=True" in repr(noisy.privacy)
    with pytest.raises(ldp.InvalidInput, match="row 1") as told:
        ldp.NoisyLabels.from_labels(["a", "SENTINEL"], law, ["a", "b", "c"])
    with pytest.raises(ldp.InvalidInput, match="masked"):
        ldp.NoisyLabels.from_labels(np.ma.array([0, 1], mask=[False, True]), law)
    assert "SENTINEL" not in str(told.value)
    for other in (ldp.SubsetSelection(3, 1.0), ldp.RRWithPrior(3, 1.0)):
        with pytest.raises(ldp.InvalidInput, match="a label or a number and nothing else"):
            ldp.NoisyLabels.from_labels([0], other)
    mixed = ldp.concat(
        [noisy, ldp.privatize(ldp.PrivateLabels(["a"], classes=["a", "b", "c"]), law)]
    )
    assert mixed.privacy.evidence == "declared, not proven"


# Verify
# --------------------------------------------------------------------------------------------------


def verify(shop: Shop) -> tuple[int, str]:
    code, said, _ = run("ledger", "verify", shop.manifest, "--ledger", shop.ledger.location)
    return code, said


def test_verify_reads_the_table_beside_the_manifest(shop: Shop) -> None:
    code, said = verify(shop)
    assert code == 0 and said.startswith(
        f"The history is whole.\n{shop.out.name} is what was released, and agrees with"
        f" {shop.manifest.name}"
    )
    kept = shop.folder / f"kept{shop.form}"
    shop.out.rename(kept)
    code, said = verify(shop)
    assert code == 7 and "is not beside it" in said
    for other in (raw_table(), read(kept).sort_by("x")):
        shop.put(other)
        code, said = verify(shop)
        assert code == 7 and "changed or replaced" in said


def test_verify_derives_what_a_manifest_promises(shop: Shop) -> None:
    facts = json.loads(shop.manifest.read_text())
    promised = facts["guarantee"]
    for change, what in (
        ({"guarantee": promised | {"epsilon": 0.01}}, "guarantee"),
        ({"guarantee": promised | {"unit": "person"}}, "guarantee"),
        ({"guarantee": promised | {"epsilon_per_row": 0.01}}, "guarantee"),
        ({"guarantee": None}, "guarantee"),
        ({"law": facts["law"] | {"epsilon": 0.01}}, "law"),
        (
            {
                "receipt": facts["receipt"] | {"epsilon": 0.01},
                "guarantee": promised | {"epsilon": 0.01},
            },
            "receipt",
        ),
        ({"digests": facts["digests"] | {"drawn": "0" * 48}}, "What was drawn"),
    ):
        shop.manifest.write_text(json.dumps(facts | change))
        code, said = verify(shop)
        assert code == 7 and what in said, change


@pytest.mark.parametrize(
    "lie",
    [
        {"classes": [1, 0]},
        {"id": ["x"]},
        {"label": "x"},
        {"dataset": "other"},
        {"classes_inferred": True},
        {"insecure": True},
        {"kind": "x"},
    ],
)
def test_verify_believes_nothing_that_the_table_and_the_charge_do_not_say(
    shop: Shop, lie: dict[str, Any]
) -> None:
    facts = json.loads(shop.manifest.read_text())
    shop.manifest.write_text(json.dumps(facts | lie))
    code, said = verify(shop)
    assert code == 7 and ("does not hold" in said or "is not what was charged" in said)


def test_verify_says_so_where_it_has_read_no_table(shop: Shop) -> None:
    """Raw labels lie beside a manifest that names no digest of its table, or whose name leads to
    none."""
    shop.put(raw_table())
    other = shop.folder / "renamed.json"
    shutil.copy(shop.manifest, other)
    code, said, _ = run("ledger", "verify", other, "--ledger", shop.ledger.location)
    assert code == 7 and "no table was read" in said
    facts = json.loads(shop.manifest.read_text())
    del facts["digests"]["output"]
    shop.manifest.write_text(json.dumps(facts))
    code, said = verify(shop)
    assert code == 7 and "no table was read" in said


def test_a_ledger_that_was_lost_and_adopted_proves_the_file_alone(shop: Shop) -> None:
    copy = write(read(shop.out).sort_by("x"), shop.folder / f"copy{shop.form}")
    Path(str(shop.ledger.location)).unlink()
    shop.ledger.adopt()
    assert read_noisy(shop.out, ledger=shop.ledger).privacy.evidence == "proven"
    assert (
        read_noisy(copy, manifest=shop.manifest, ledger=shop.ledger).privacy.evidence
        == "not recorded"
    )
    forge(shop, epsilon=0.01)
    with pytest.raises(ldp.LedgerError, match="changed after the charge"):
        read_noisy(shop.out, ledger=shop.ledger)


@pytest.mark.parametrize("asked", ["train", "release", "aggregate"])
def test_a_copy_of_a_released_table_is_no_raw_one_wherever_it_lies(
    tmp_path: Path, asked: str
) -> None:
    """CSV says nothing of itself: without its manifest the ledger knows it, by its bytes, under
    every name."""
    shop = Shop(tmp_path, ".csv")
    (tmp_path / "away").mkdir()
    copy = Path(shutil.copy(shop.out, tmp_path / "away" / "lost.csv"))
    entries = len(shop.ledger.history())
    given = (
        "--label",
        "y",
        "--classes",
        "0,1",
        "--epsilon",
        1,
        "--ledger",
        shop.ledger.location,
        "--out",
        tmp_path / f"{asked}.csv",
    )
    more = {"train": ("--id", "id"), "release": ("--id", "id"), "aggregate": ("--group", "id")}
    code, _, wrong = run(asked, copy, *given, *more[asked])
    said = " ".join(wrong.split())
    assert (
        code == 4
        and f"which run {shop.done.receipt.run_id} released" in said
        and "lost.csv.manifest.json" in said
    )
    assert len(shop.ledger.history()) == entries
    assert shop.train("--manifest", shop.manifest, source=copy)[0] == 0


@pytest.mark.parametrize("known", [True, False], ids=["known to the ledger", "unknown"])
def test_a_table_without_epsilon_is_asked_for_its_manifest_first(
    tmp_path: Path, known: bool
) -> None:
    shop = Shop(tmp_path, ".csv")
    copy = Path(shutil.copy(shop.out, tmp_path / "lost.csv"))
    ledger = shop.ledger.location if known else tmp_path / "other.db"
    code, _, wrong = run("train", copy, "--label", "y", "--out", tmp_path / "m", "--ledger", ledger)
    said = " ".join(wrong.split())
    assert code == 4 and "lost.csv.manifest.json" in said and "--manifest" in said
    assert ("--epsilon" in said) is not known
    assert known or said.index("--manifest") < said.index("--epsilon")


def test_a_release_whose_output_is_its_input_to_the_byte_is_repeated(
    tmp_path: Path, ledger: ldp.Ledger
) -> None:
    """Noise that changes nothing, at an epsilon that makes this certain: the run goes on to know
    its own input."""
    write(raw_table(20), tmp_path / "raw.csv")
    spec = ldp.ReleaseSpec("y", [0, 1], 100.0, "rr", id="id", order="keep", dataset="d")
    with pytest.warns(ldp.errors.LargeEpsilonWarning):
        ldp.release(tmp_path / "raw.csv", tmp_path / "out.csv", spec, ledger)
    (tmp_path / "raw.csv").write_bytes((tmp_path / "out.csv").read_bytes())
    with pytest.warns(ldp.errors.RepeatWarning):
        assert ldp.release(tmp_path / "raw.csv", tmp_path / "out.csv", spec, ledger).repeated
