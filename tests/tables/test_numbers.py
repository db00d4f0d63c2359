# SPDX-License-Identifier: Apache-2.0
"""Releases of a column of numbers: a public range, rounding and clamping in the door, a numeric
column, and what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from tests.cli.commands import run

import labeldp as ldp
from labeldp.app._release import release
from labeldp.app.plan import plan_numbers
from labeldp.errors import InvalidInput
from labeldp.ledger._ledger import Ledger
from labeldp.papers.regression import RROnBins
from labeldp.tables._evidence import read_noisy
from labeldp.tables._spec import ReleaseSpec, make_plan
from labeldp.tables.formats._table import GridCodec, label_codec

N = 4000
TENS = ldp.Grid(0, 100, points=11)


def incomes(n: int = N) -> np.ndarray:
    """Numbers, some of them outside of 0..100."""
    return np.random.default_rng(0).normal(40, 25, n).round(3)


def write(path: Path, values: Any) -> Path:
    table = pa.table(
        {"id": np.arange(len(values)), "x": np.arange(len(values)) % 7, "income": values}
    )
    (pq.write_table if path.suffix == ".parquet" else pc_csv.write_csv)(table, path)
    return path


def spec(grid: ldp.Grid = TENS, **more: Any) -> ReleaseSpec:
    return ReleaseSpec("income", grid, 2.0, id="id", **more)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_number_is_released_by_intervals_of_its_range(tmp_path: Path, ending: str) -> None:
    """The mean of the true, clamped numbers is estimated within 6 standard errors of a random
    threshold's estimate, which tells less."""
    values, ledger = incomes(), Ledger(tmp_path / "l.db")
    done = release(
        write(tmp_path / f"in.{ending}", values), tmp_path / f"out.{ending}", spec(), ledger
    )
    assert done.manifest["grid"] == {"low": 0, "high": 100, "points": 11}
    assert done.manifest["law"]["law"] == "square-wave"
    noisy = read_noisy(tmp_path / f"out.{ending}")
    assert noisy.classes == TENS and isinstance(noisy.classes, ldp.Grid)
    found = ldp.metrics.likeliest_frequencies(noisy.likelihood()) @ np.array(TENS)
    p = np.exp(2) / (1 + np.exp(2))
    # ten thresholds, ten apart, each asked of a tenth of the rows
    error = 10 * 10 / (2 * p - 1) / np.sqrt(N) / 2
    assert abs(found - np.clip(values, 0, 100).mean()) < 6 * error
    again = release(tmp_path / f"in.{ending}", tmp_path / f"again.{ending}", spec(), ledger)
    assert (
        again.repeated
        and (tmp_path / f"again.{ending}").read_bytes() == (tmp_path / f"out.{ending}").read_bytes()
    )


@pytest.mark.parametrize(
    ("points", "law"), [(11, "square-wave"), (700, "square-wave"), (701, "threshold")]
)
def test_the_default_law_is_one_in_releases_fits_and_beside_other_columns(
    points: int, law: str
) -> None:
    values, x, grid = incomes(200), np.zeros((200, 1)), ldp.Grid(0, 100, points)
    assert spec(grid).law_name == law
    model = ldp.LabelDPRegressor(epsilon=2.0, stages=1).fit(
        x, ldp.PrivateLabels(np.clip(values, 0, 100), range=grid, noise=ldp.SeededNoise(0))
    )
    assert {block.law.name for block in model.noisy_labels_.blocks} == {law}
    assert model.estimated_rmse_ is not None  # of so many points, by thresholds alone
    both = ldp.LabelColumns({"flag": ["no", "yes"], "income": grid})
    assert both.law(2.0, "equal").laws == ("subset", law)
    reason, _ = plan_numbers(grid, [2.0])["reasons"]
    assert (
        f"learn from {'intervals' if law == 'square-wave' else 'thresholds'}. labeldp train"
        in reason
    )
    assert "and labeldp release draw them by default" in reason


def test_the_default_law_with_a_prior_asks_near_it(tmp_path: Path) -> None:
    assert spec(prior=[f"p{code}" for code in range(11)]).law_name == "threshold"
    plan = make_plan(spec(dataset="people"), (0.5, 0.5), None, Ledger(tmp_path / "l.db"))
    assert plan.laws == ("square-wave", "threshold")


@pytest.mark.parametrize(
    ("given", "grid", "released"),
    [
        (pa.int32(), TENS, pa.int32()),
        (pa.int64(), ldp.Grid(0, 1, points=5), pa.float64()),
        (pa.float32(), TENS, pa.float32()),
        (pa.float64(), TENS, pa.float64()),
        (pa.dictionary(pa.int8(), pa.float64()), TENS, pa.float64()),
    ],
)
def test_a_released_number_keeps_a_numeric_type(
    tmp_path: Path, given: pa.DataType, grid: ldp.Grid, released: pa.DataType
) -> None:
    kind = given.value_type if pa.types.is_dictionary(given) else given
    values = pa.array(incomes(200).round()).cast(kind, safe=False)
    values = values.dictionary_encode().cast(given) if given != kind else values
    out = tmp_path / "out.parquet"
    release(
        write(tmp_path / "in.parquet", values), out, spec(grid, law="rr"), Ledger(tmp_path / "l.db")
    )
    found = pq.read_table(out)["income"]
    assert found.type == released
    assert set(found.to_pylist()) <= set(np.array(grid, released.to_pandas_dtype()).tolist())
    assert isinstance(read_noisy(out).classes, ldp.Grid)


def test_all_ways_into_the_door_round_and_clamp_alike() -> None:
    values = np.concatenate([incomes(), [-1e300, 1e300, 5.0, 15.0, 95.0, 0.0, -0.0, 100.0]])
    codes = TENS.codes(values)
    texts = pa.array([repr(float(value)) for value in values])
    assert np.array_equal(
        GridCodec(TENS, "y", pa.float64(), text_table=False).encode(pa.array(values)), codes
    )
    assert np.array_equal(GridCodec(TENS, "y", pa.string(), text_table=True).encode(texts), codes)
    assert np.array_equal(
        GridCodec(TENS, "y", pa.float64(), text_table=False).encode(
            pa.array(values).dictionary_encode()
        ),
        codes,
    )
    noisy = ldp.privatize(
        ldp.PrivateLabels(values, classes=TENS, noise=ldp.SeededNoise(0)),
        ldp.RandomizedResponse(11, 700.0),
    )
    assert np.array_equal(noisy.hard_codes(), codes)


@pytest.mark.parametrize("bad", ["nan", "inf", "", "secret-7", "1,5", "0x10", "1_0", "--3"])
def test_what_is_no_number_is_refused_before_the_charge_and_never_shown(
    tmp_path: Path, bad: str
) -> None:
    source, ledger = tmp_path / "in.csv", tmp_path / "l.db"
    source.write_text(
        "id,x,income\n" + "".join(f"{i},1,{i}\n" for i in range(50)) + f'50,1,"{bad}"\n'
    )
    with pytest.raises(
        InvalidInput,
        match="every label of column 'income' to be a finite number, but some label is not",
    ) as caught:
        release(source, tmp_path / "out.csv", spec(), Ledger(ledger))
    assert not bad or bad not in str(caught.value)
    assert not re.search(r"row \d|line", str(caught.value))
    assert not Ledger(ledger).runs()


def test_columns_that_hold_no_points_are_refused() -> None:
    with pytest.raises(InvalidInput, match="holds apart"):
        label_codec(ldp.Grid(1e6, 1e6 + 0.5, points=50), "y", pa.float32(), text_table=False)
    with pytest.raises(InvalidInput, match="got a wider one"):
        label_codec(ldp.Grid(0, 1000, points=11), "y", pa.int8(), text_table=False)
    with pytest.raises(InvalidInput, match="Cast it, or list classes"):
        label_codec(TENS, "y", pa.string(), text_table=False)


def test_the_command_takes_a_range(tmp_path: Path) -> None:
    source, told = (
        write(tmp_path / "in.csv", incomes(300)),
        ("--label", "income", "--epsilon", 1, "--id", "id", "--out", tmp_path / "out.csv"),
    )
    code, said, err = run("release", source, *told, "--range", "0:100:11", "--json")
    assert code == 0, err
    manifest = json.loads(Path(json.loads(said)["manifest"]).read_text())
    assert (
        manifest["grid"] == {"low": 0, "high": 100, "points": 11}
        and manifest["law"]["law"] == "square-wave"
    )
    for options, words in (
        (("--range", "0:100", "--classes", "a,b"), "Leave one out"),
        (("--range", "100:0"), "lower end first"),
        (("--range", "0"), "LOW:HIGH"),
        (("--range", "0:1:2:3"), "LOW:HIGH:POINTS"),
        (("--range", "0:inf"), "finite"),
        (("--range", "5:5"), "low < high"),
        (("--range", "0:9:1"), "points"),
    ):
        code, _, err = run("release", source, *told[:-1], tmp_path / "other.csv", *options)
        assert code == 2 and words in " ".join(err.replace("│", " ").split()), err


@pytest.mark.parametrize("law", ["unbiased", "rr-on-bins"])
@pytest.mark.parametrize(
    ("ending", "kind"), [("csv", pa.float64()), ("parquet", pa.int32()), ("parquet", pa.float32())]
)
def test_numbers_of_a_law_are_released_as_they_are(
    tmp_path: Path, ending: str, kind: pa.DataType, law: str
) -> None:
    """The column holds the law's numbers as doubles, without evidence beside it; a reader gets
    their likelihood."""
    values, ledger, out = incomes(500), Ledger(tmp_path / "l.db"), tmp_path / f"out.{ending}"
    release(
        write(tmp_path / f"in.{ending}", pa.array(values).cast(kind, safe=False)),
        out,
        spec(law=law),
        ledger,
    )
    table = pc_csv.read_csv(out) if ending == "csv" else pq.read_table(out)
    assert table.column_names == ["id", "x", "income"] and table["income"].type == pa.float64()
    noisy = read_noisy(out, ledger=ledger)
    numbers = noisy.blocks[0].law.released(TENS)
    assert np.array_equal(noisy.released(), table["income"].to_numpy()) and set(
        noisy.released()
    ) <= set(numbers)
    assert noisy.privacy.recorded and noisy.classes == TENS
    pc_csv.write_csv(table, tmp_path / "copy.csv")  # without manifest and metadata
    declared = read_noisy(
        tmp_path / "copy.csv", "income", law=noisy.blocks[0].law, classes=TENS, id="id"
    )
    assert (
        np.array_equal(declared.likelihood(), noisy.likelihood())
        and declared.privacy.declared
        and declared.classes is TENS
    )


def test_numbers_of_a_law_are_proven_where_a_unit_has_several_rows(tmp_path: Path) -> None:
    """Each row's law is solved for at a share of epsilon."""
    out = tmp_path / "out.parquet"
    given = spec(law="unbiased", unit="x", max_rows_per_unit=4)
    release(write(tmp_path / "in.parquet", incomes(300)), out, given, Ledger(tmp_path / "l.db"))
    noisy = read_noisy(out)
    assert len(noisy) == 28 and noisy.blocks[0].law == ldp.laws.UnbiasedRandomizer(11, 0.5)


def test_a_changed_number_is_found(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    release(
        write(tmp_path / "in.csv", incomes(50)),
        out,
        spec(law="unbiased"),
        Ledger(tmp_path / "l.db"),
    )
    lines = out.read_text().splitlines()
    first, other = (
        lines[1].rsplit(",", 1),
        next(line for line in lines[2:] if line.rsplit(",", 1)[1] != lines[1].rsplit(",", 1)[1]),
    )
    for number in ("12.5", other.rsplit(",", 1)[1]):
        out.write_text("\n".join([lines[0], f"{first[0]},{number}", *lines[2:]]) + "\n")
        with pytest.raises(InvalidInput, match="something else"):
            read_noisy(out)


@pytest.mark.parametrize("law", ["unbiased", RROnBins(11, 2.0)])
def test_numbers_of_a_law_need_a_range(tmp_path: Path, law: Any) -> None:
    for classes in (list(range(11)), "infer"):
        with pytest.raises(InvalidInput, match="Expected a range for law"):
            ReleaseSpec("income", classes, 2.0, law=law)
    table = write(tmp_path / "in.csv", incomes(50))
    code, _, said = run(
        "release",
        table,
        "--label",
        "x",
        "--classes",
        "0,1,2,3,4,5,6",
        "--epsilon",
        "1",
        "--law",
        "unbiased",
        "--out",
        tmp_path / "o.csv",
    )
    assert code == 2 and "--range LOW:HIGH" in said
