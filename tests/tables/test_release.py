# SPDX-License-Identifier: Apache-2.0
"""A release end to end, from Python: what comes out, what it cost, what a repeat does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from tests.files import read, write

from labeldp.app._release import release
from labeldp.errors import BudgetExceeded, DomainLeakWarning, InvalidInput, ReleaseError
from labeldp.ledger._ledger import Ledger
from labeldp.tables._evidence import read_noisy
from labeldp.tables._place import Place
from labeldp.tables._spec import ReleaseSpec

N, K = 6000, 4


def data(n: int = N, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, K, n).astype(np.int32)
    weights = rng.random((n, K)) + 0.1
    columns: dict[str, Any] = {
        "id": np.arange(n)[::-1] * 7,
        "who": [f"p{i // 3}" for i in range(n)],
        "y": label,
        "x": rng.standard_normal(n),
    }
    return pa.table(columns | {f"p{c}": weights[:, c] for c in range(K)})


def spec(**changes: Any) -> ReleaseSpec:
    return ReleaseSpec(**({"label": "y", "classes": range(K), "epsilon": 1.0} | changes))


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize("id_column", [None, "id"])
def test_label_is_randomized_and_the_rest_is_the_same(
    tmp_path: Path, ledger: Ledger, ending: str, id_column: str | None
) -> None:
    table = data()
    done = release(
        write(table, tmp_path / f"in.{ending}"),
        tmp_path / f"out.{ending}",
        spec(id=id_column, epsilon=2.0),
        ledger,
    )
    out = read(done.path)
    assert out.column_names == table.column_names
    assert ending == "csv" or out.schema.equals(table.schema)
    assert out["id"].to_pylist() != table["id"].to_pylist()
    both = out.sort_by("id").to_pydict(), table.sort_by("id").to_pydict()
    for name in set(table.column_names) - {"y"}:
        assert both[0][name] == both[1][name]
    kept = np.mean(np.array(both[0]["y"]) == np.array(both[1]["y"]))
    expected = np.exp(2) / (np.exp(2) + K - 1)
    assert abs(kept - expected) < 6 * np.sqrt(expected * (1 - expected) / N)  # false alarm 2e-9
    assert ledger.spent("in", "y") == 2.0
    assert done.manifest["receipt"]["recorded"] is True


@pytest.mark.parametrize("ending", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("law", "prior"),
    [
        (None, False),
        ("rr-top-k:2", True),
        (None, True),
        ("subset", False),
        ("subset:2", True),
        ("split", True),
        ("auto", True),
        ("auto", False),
        ("cluster-rr", True),
        ("cluster-rr:0.05", True),
        ("alibi", False),
        ("alibi:16", True),
    ],
)
def test_every_law_reads_back_as_evidence(
    tmp_path: Path, ledger: Ledger, ending: str, law: str | None, prior: bool
) -> None:
    table = data(1500)
    names = [f"p{c}" for c in range(K)] if prior else None
    made = spec(law=law, prior=names, id="id", epsilon=1.5)
    done = release(
        write(table, tmp_path / f"in.{ending}"), tmp_path / f"out.{ending}", made, ledger
    )
    noisy = read_noisy(done.path, "y")
    out = read(done.path)
    assert len(noisy) == 1500
    assert (noisy.ids.astype(int) == out["id"].to_numpy()).all()
    assert noisy.privacy.epsilon == 1.5
    weights = np.column_stack([out[name].to_numpy() for name in names]) if names else None
    block = noisy.blocks[0]
    codes = noisy.hard_codes(weights) if block.law.kind != "label" else block.outputs
    assert (codes == out["y"].to_numpy()).all()
    true = dict(zip(table["id"].to_pylist(), table["y"].to_pylist(), strict=True))
    truth = np.array([true[i] for i in out["id"].to_pylist()])
    likelihood = noisy.likelihood(dtype="float64")
    # 0.13 at least, by 14 standard deviations
    assert likelihood[np.arange(1500), truth].mean() > likelihood.mean() + 0.05
    assert ("y__evidence" in out.column_names) == (done.manifest["evidence"] is not None)


def test_a_repeat_gives_the_stored_table_and_costs_nothing(tmp_path: Path, ledger: Ledger) -> None:
    source = write(data(), tmp_path / "in.parquet")
    first = release(source, tmp_path / "o.parquet", spec(), ledger)
    raw = first.path.read_bytes()
    again = release(source, tmp_path / "o.parquet", spec(), ledger)
    assert again.repeated
    assert again.receipt == first.receipt
    assert first.path.read_bytes() == raw
    elsewhere = release(source, tmp_path / "other.parquet", spec(), ledger)
    assert elsewhere.repeated
    assert (tmp_path / "other.parquet").read_bytes() == raw
    assert json.loads(elsewhere.manifest_path.read_text()) == json.loads(
        first.manifest_path.read_text()
    )
    assert ledger.spent("in", "y") == 1.0
    assert len(ledger.runs()) == 1


def test_a_foreign_output_is_read_once_whatever_was_released_before(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.set_budget("d", "y", 9.0)
    for part in range(3):
        source = write(data(300, seed=part).slice(100 * part, 100), tmp_path / "in.parquet")
        done = release(source, tmp_path / f"o{part}.parquet", spec(id="id", dataset="d"), ledger)
    foreign, read_files, digest = write(data(50), tmp_path / "o.parquet"), [], Place.digest
    monkeypatch.setattr(
        Place, "digest", lambda place: read_files.append(place.name) or digest(place)
    )
    with pytest.raises(ReleaseError, match="holds something else"):
        release(source, foreign, spec(id="id", dataset="d"), ledger)
    assert read_files == ["o.parquet"]
    done.manifest_path.unlink()  # a run's own table is known without it
    assert release(source, done.path, spec(id="id", dataset="d"), ledger).repeated


@pytest.mark.parametrize(
    "id_column", ["id", "who", ["who", "id"]], ids=["integers", "text", "two columns"]
)
@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_an_id_that_comes_twice_is_told_by_its_rows(
    tmp_path: Path, ledger: Ledger, ending: str, id_column: str | list[str]
) -> None:
    table = data(300).set_column(1, "who", pa.array([f"p{i}" for i in range(300)]))
    source = write(
        pa.concat_tables([table, table.slice(7, 1), table.slice(3, 1)]), tmp_path / f"in.{ending}"
    )
    with pytest.raises(InvalidInput, match="Expected different ids, but") as told:
        release(source, tmp_path / f"o.{ending}", spec(id=id_column), ledger)
    rows = (
        ("row 8 (line 9)", "row 301 (line 302)")
        if ending == "csv"
        else ("row 8", "row 301 (the first is row 1)")
    )
    assert f"{rows[0]} and {rows[1]} have the same" in str(told.value)
    assert ledger.runs() == []


@pytest.mark.parametrize(("first", "then"), [("shuffle", "keep"), ("keep", "shuffle")])
def test_a_repeat_in_another_order_of_the_output_is_refused(
    tmp_path: Path, ledger: Ledger, first: str, then: str
) -> None:
    source = write(data(), tmp_path / "in.parquet")
    done = release(source, tmp_path / "o.parquet", spec(order=first), ledger)
    for name in ("o.parquet", "other.parquet"):
        with pytest.raises(
            ReleaseError,
            match=f"order='{first}', in which this release has written its rows",
        ):
            release(source, tmp_path / name, spec(order=then), ledger)
    assert ledger.spent("in", "y") == done.receipt.epsilon
    assert not (tmp_path / "other.parquet").exists()


def test_a_redraw_is_charged_and_differs(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", budget=2.0)
    source = write(data(), tmp_path / "in.parquet")
    first = release(source, tmp_path / "o.parquet", spec(id="id"), ledger)
    with pytest.raises(ReleaseError, match="another name"):
        release(source, tmp_path / "o.parquet", spec(id="id"), ledger, redraw=True)
    second = release(source, tmp_path / "o2.parquet", spec(id="id"), ledger, redraw=True)
    assert second.receipt.run_id != first.receipt.run_id
    assert ledger.spent("in", "y") == 2.0
    labels = [read(done.path).sort_by("id")["y"].to_numpy() for done in (first, second)]
    assert 0.2 < np.mean(labels[0] != labels[1]) < 0.9
    with pytest.raises(BudgetExceeded):
        release(source, tmp_path / "o3.parquet", spec(id="id"), ledger, redraw=True)
    assert not (tmp_path / "o3.parquet").exists()


def test_units_are_capped_and_share_epsilon(tmp_path: Path, ledger: Ledger) -> None:
    table = data()
    done = release(
        write(table, tmp_path / "in.csv"),
        tmp_path / "o.csv",
        spec(unit="who", max_rows_per_unit=2, id="id", law="subset"),
        ledger,
    )
    out = read(done.path)
    assert out.num_rows == N * 2 // 3
    assert max(np.unique(np.array(out["who"].to_pylist()), return_counts=True)[1]) == 2
    assert done.manifest["rows_over_the_cap"] == N // 3
    assert done.manifest["guarantee"] == {
        "unit": "who",
        "max_rows_per_unit": 2,
        "epsilon": 1.0,
        "delta": 0.0,
        "epsilon_per_row": 0.5,
    }
    assert read_noisy(done.path).blocks[0].law.epsilon == 0.5
    both = dict(zip(table["id"].to_pylist(), table["x"].to_pylist(), strict=True))
    assert all(
        both[i] == x for i, x in zip(out["id"].to_pylist(), out["x"].to_pylist(), strict=True)
    )


def test_inferred_classes_warn_and_are_recorded(tmp_path: Path, ledger: Ledger) -> None:
    source = write(data(300), tmp_path / "in.csv")
    with pytest.warns(DomainLeakWarning) as caught:
        done = release(source, tmp_path / "o.csv", spec(classes="infer"), ledger)
    # at the user's line, however deep the classes are read
    assert {each.filename for each in caught} == {__file__}
    assert done.manifest["classes_inferred"] is True
    assert done.manifest["classes"] == ["0", "1", "2", "3"]
    said = "which classes occur"
    assert (
        done.manifest["guarantee"]["except_for"]
        == done.manifest["receipt"]["except_for"]
        == done.receipt.except_for
        == said
    )
    assert read_noisy(done.path).privacy.except_for == said
    with pytest.warns(DomainLeakWarning):
        assert release(source, tmp_path / "o.csv", spec(classes="infer"), ledger).repeated
    with pytest.raises(InvalidInput, match="strict"):
        spec(classes="infer", strict=True)
    with pytest.raises(InvalidInput, match=r"got none.*classes='infer'"):
        spec(classes=None)
    known = release(source, tmp_path / "known.csv", spec(dataset="known"), ledger)
    assert (
        "except_for" not in known.manifest["guarantee"]
        and "except_for" not in known.manifest["receipt"]
    )


@pytest.mark.parametrize("engine", ["spark", "ray"])
def test_a_cluster_reads_no_classes_off_the_labels(
    tmp_path: Path, ledger: Ledger, engine: str
) -> None:
    source = write(data(300), tmp_path / "in.parquet")
    with pytest.raises(InvalidInput, match="declared classes") as caught:
        release(source, tmp_path / "o", spec(classes="infer", id="id"), ledger, engine)
    assert "classes=" in str(caught.value) and ledger.runs() == []


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("kind", ["cents", "whole floats", "many", "many texts"])
def test_a_column_of_numbers_is_never_published_as_classes(
    tmp_path: Path, ledger: Ledger, ending: str, kind: str
) -> None:
    n = 400
    rng = np.random.default_rng(5)
    column = {
        "cents": rng.integers(10**5, 10**7, n) / 100,
        "whole floats": rng.integers(0, 3, n) + 0.0,
        # 21 values: one above the root of 400
        "many": np.concatenate([np.arange(20), rng.integers(0, 21, n - 21), [20]]),
        "many texts": np.array([f"{v}, rue" for v in range(n)]),
    }[kind]
    table = pa.table({"income": column, "x": np.arange(n)})
    source = tmp_path / f"in.{ending}"
    if ending == "csv":
        table.to_pandas().to_csv(source, index=False)  # writes whole floats as 1.0
    else:
        pq.write_table(table, source)
    with pytest.raises(InvalidInput) as caught:
        release(
            source, tmp_path / f"o.{ending}", spec(label="income", classes="infer", id=None), ledger
        )
    assert not {"21", "400.", str(column[0])} & set(str(caught.value).split())
    assert ledger.runs() == [] and not (tmp_path / f"o.{ending}").exists()


@pytest.mark.parametrize(
    ("name", "fix"), [("in.csv.gz", "Unpack it"), ("in.xlsx", "Convert or rename it")]
)
def test_other_endings_are_refused_with_what_to_do(
    tmp_path: Path, ledger: Ledger, name: str, fix: str
) -> None:
    (tmp_path / name).write_bytes(b"id,y\n1,no\n")
    with pytest.raises(InvalidInput, match=fix):
        release(tmp_path / name, tmp_path / "o.csv", spec(classes=["no", "yes"], id="id"), ledger)


def test_text_that_is_not_utf8_is_refused_before_the_charge(tmp_path: Path, ledger: Ledger) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes("id,town,y\n1,Köln,no\n2,Bonn,yes\n".encode("latin-1"))
    for ids in ("id", None):
        with pytest.raises(
            InvalidInput, match=r"UTF-8 in in\.csv, got other bytes\. Save the file as UTF-8"
        ):
            release(source, tmp_path / "o.csv", spec(classes=["no", "yes"], id=ids), ledger)
    assert ledger.runs() == [] and not (tmp_path / "o.csv").exists()


def test_null_labels_are_a_class_if_declared(tmp_path: Path, ledger: Ledger) -> None:
    table = pa.table({"y": ["a", None, "b"] * 300, "x": range(900)})
    for ending in ("parquet", "csv"):
        source = write(table, tmp_path / f"in.{ending}")
        with pytest.raises(
            InvalidInput,
            match=r"some label is missing.*Declare the null class, classes=",
        ):
            release(
                source, tmp_path / f"o.{ending}", spec(classes=["a", "b"], dataset=ending), ledger
            )
        done = release(
            source, tmp_path / f"o.{ending}", spec(classes=["a", "b", None], dataset=ending), ledger
        )
        assert set(
            pq.read_table(done.path)["y"].to_pylist()
            if ending == "parquet"
            else pc_csv.read_csv(
                done.path, convert_options=pc_csv.ConvertOptions(strings_can_be_null=True)
            )["y"].to_pylist()
        ) == {"a", "b", None}
    assert len(ledger.runs()) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": float("nan")},
        {"epsilon": float("inf")},
        {"epsilon": 0},
        {"epsilon": -1.0},
        {"epsilon": True},
        {"classes": ["a"]},
        {"classes": ["a", "a"]},
        {"classes": "ab"},
        {"label": ""},
        {"law": "nope"},
        {"law": "rr-top-k"},
        {"law": "rr:3"},
        {"law": "subset:0"},
        {"law": "rr", "prior": ["p0", "p1", "p2", "p3"]},
        {"prior": ["p0", "p1"]},
        {"id": "y"},
        {"unit": "y"},
        {"id": ["a", "a"]},
        {"max_rows_per_unit": 2},
        {"max_rows_per_unit": 0, "unit": "who"},
        {"order": "sorted"},
    ],
)
def test_illegal_specs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        spec(**changes)


@pytest.mark.parametrize("change", ["label", "public"])
def test_an_input_that_changes_between_passes_is_not_published(
    tmp_path: Path, ledger: Ledger, change: str
) -> None:
    source = write(data(), tmp_path / "in.csv")

    def tamper(phase: str, done: int, total: int) -> None:
        if phase == "check" and done == total:
            lines = source.read_text().splitlines(keepends=True)
            row = lines[5].split(",")
            row[2] = str((int(row[2]) + 1) % K)
            lines[5] = ",".join(row)
            source.write_text("".join(lines) if change == "label" else "".join(lines[:-1]))

    with pytest.raises(ReleaseError, match="changed"):
        release(source, tmp_path / "o.csv", spec(), ledger, progress=tamper)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(("o.", ".o"))] == []
    assert ledger.runs()[0].state == "charged"


@pytest.mark.filterwarnings("ignore:An epsilon of 1e-06")
def test_row_groups_do_not_tell_how_long_raw_labels_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labeldp.tables.formats import _parquet as parquet

    monkeypatch.setattr(parquet, "BATCH_BYTES", 1 << 14)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 1 << 14)
    layouts = []
    classes = ("x", "y" * 80)
    # all labels short, or all long; the noise makes half of them the other
    for number, name in enumerate(classes):
        table = data().set_column(data().schema.get_field_index("y"), "y", pa.array([name] * N))
        source, out = (
            write(table, tmp_path / f"in{number}.parquet"),
            tmp_path / f"out{number}.parquet",
        )
        release(
            source,
            out,
            spec(classes=classes, epsilon=1e-6, order="keep"),
            Ledger(tmp_path / f"{number}.db"),
        )
        metadata = pq.ParquetFile(out).metadata
        layouts.append([metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)])
    assert len(layouts[0]) > 10
    assert layouts[0] == layouts[1]


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_a_bad_prior_is_refused_before_the_charge_even_where_it_is_not_read(
    tmp_path: Path, ledger: Ledger, bad: float
) -> None:
    table = data()
    weights = np.ones(N)
    weights[-1] = bad
    table = table.set_column(table.schema.get_field_index("p3"), "p3", pa.array(weights))
    prior = tuple(f"p{c}" for c in range(K))
    with pytest.raises(InvalidInput, match="weights >= 0"):
        release(
            write(table, tmp_path / "in.parquet"),
            tmp_path / "out.parquet",
            spec(law="subset", prior=prior),
            ledger,
        )
    assert ledger.runs() == []


@pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 21, reason="pyarrow 20 writes none to Parquet"
)
@pytest.mark.parametrize("order", ["shuffle", "keep"])
def test_text_that_arrow_reads_as_views_is_released(
    tmp_path: Path, ledger: Ledger, order: str
) -> None:
    """Arrow cannot reorder such columns, as label, id or anything else; the shuffle comes after the
    charge."""
    text, view, n = [f"v{i}" for i in range(200)], pa.string_view(), 200
    columns = {
        "id": pa.array(text, view),
        "y": pa.array([f"c{i % K}" for i in range(n)], view),
        "s": pa.array([None, *text[1:]], view),
        "b": pa.array([each.encode() for each in text], pa.binary_view()),
        "l": pa.array([[each] for each in text], pa.list_(view)),
        "f": pa.array([[each] for each in text], pa.list_(view, 1)),
        "st": pa.array([{"a": each} for each in text], pa.struct([("a", view)])),
    }
    source = write(pa.table(columns), tmp_path / "in.parquet")
    done = release(
        source,
        tmp_path / "out.parquet",
        spec(id="id", classes=[f"c{c}" for c in range(K)], order=order),
        ledger,
    )
    out = read(done.path).sort_by("id")
    for name in set(columns) - {"y"}:
        assert out[name].to_pylist() == [
            value for _, value in sorted(zip(text, columns[name].to_pylist(), strict=True))
        ]
    assert out.schema.field("s").type == pa.large_string()
    assert release(
        source,
        tmp_path / "out.parquet",
        spec(id="id", classes=[f"c{c}" for c in range(K)], order=order),
        ledger,
    ).repeated
