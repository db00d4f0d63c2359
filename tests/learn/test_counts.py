# SPDX-License-Identifier: Apache-2.0
"""Learning from overlapping tables of counts: their likelihood, reading them by name, and the
classifier."""

import itertools
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy.optimize import check_grad
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import labeldp as ldp
from labeldp.errors import UntrainedWarning
from labeldp.learn import CountsClassifier, CountTable, Groupings, SoftmaxRegression
from labeldp.learn._counts import _off
from labeldp.learn._softmax import (
    CountEvidence,
    CountNoise,
    JointEvidence,
    RowEvidence,
    count_evidence,
    objective,
)

MISTAKE = 1e-6  # chance that a right implementation fails a statistical test
SEED = ldp.SeededNoise(0)
CITIES, AGES, JOBS = (
    ("Graz", "Linz", "Wien"),
    ("old", "young"),
    ("clerk", "cook", "smith", "tailor"),
)


def people(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Public rows, the probability of "yes" of each, by an additive model, and labels 0 or 1."""
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            name: rng.choice(levels, n)
            for name, levels in (("city", CITIES), ("age", AGES), ("job", JOBS))
        }
    )
    effects = {"Graz": -1.0, "Wien": 1.0, "young": 1.2, "cook": -0.8, "smith": 0.8}
    p = expit(sum(rows[name].map(effects).fillna(0.0) for name in rows) - 0.3).to_numpy()
    return rows, p, (rng.random(n) < p).astype(int)


def crossed(
    rows: pd.DataFrame, y: np.ndarray, by: list[str], sd: float = 0.0, seed: int = 0
) -> pd.DataFrame:
    """A frame of counts as people have it, with normal noise."""
    found = pd.crosstab([rows[name] for name in by], y).reset_index()
    noise = np.random.default_rng(seed).normal(0, sd, (len(found), 2)) if sd else 0.0
    found[["no", "yes"]] = found[[0, 1]] + noise
    return found[[*by, "no", "yes"]]


def table_of(
    frame: pd.DataFrame, by: list[str], variance: float = 0.0, **more: object
) -> CountTable:
    return CountTable.from_frame(frame, by, {"no": "no", "yes": "yes"}, variance=variance, **more)


def regression() -> object:
    return make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression(C=1.0))


# The likelihood
# --------------------------------------------------------------------------------------------------


def overlapping(rng: np.random.Generator, *, limits: bool = True) -> CountEvidence:
    """Three tables of 40 rows, some rows in none of them, some counts missing, some below a limit,
    a part of some groups counted."""
    groups = np.column_stack(
        [rng.integers(-1, 4, 40), rng.integers(0, 3, 40), rng.integers(0, 2, 40)]
    )
    counts = [rng.normal(4, 4, (size, 4)) for size in (4, 3, 2)]
    counts[0][1, 2] = counts[1][2] = np.nan
    used = [
        np.bincount(column[column >= 0], minlength=size) * rng.random(size)
        for column, size in zip(groups.T, (4, 3, 2), strict=True)
    ]
    noise = CountNoise([1.0, rng.random((3, 4)), 4.0], used, [None, 3.0, None] if limits else None)
    return count_evidence(groups, counts, noise, 40)


def joint(rng: np.random.Generator) -> JointEvidence:
    return JointEvidence((overlapping(rng), RowEvidence(np.log(rng.random((9, 4))), rng.random(9))))


@pytest.mark.parametrize(("make", "n"), [(overlapping, 40), (joint, 49)])
def test_gradient(make, n):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        evidence, X, at = make(rng), rng.normal(size=(n, 3)), rng.normal(size=16)
        loss = objective(X, evidence, rng.random((4, 4)), True, rng.normal(size=4))
        assert (
            check_grad(lambda w, loss=loss: loss(w)[0], lambda w, loss=loss: loss(w)[1], at) < 1e-5
        )


def test_the_score_at_the_truth_is_zero_on_average():
    """Overlapping tables with rounded normal noise, one of them without its small counts: 400
    draws, a z-test for each coefficient."""
    rng = np.random.default_rng(3)
    n, sd, sizes = 3000, 4.0, (4, 3, 60)
    X = rng.normal(size=(n, 2))
    groups = np.column_stack(
        [np.digitize(X[:, 0], [-1, 0, 1]), np.digitize(X @ [1, 1], [-1, 1]), rng.integers(0, 60, n)]
    )
    p = expit(X @ [1.0, -1.0] - 1.2)
    scores, design = (
        np.column_stack([np.zeros(n), np.log(p / (1 - p))]),
        np.column_stack([X, np.ones(n)]),
    )
    slopes, ignoring = [], []
    for _ in range(400):
        y = (rng.random(n) < p).astype(int)
        whole = [
            np.bincount(2 * g + y, minlength=2 * size).reshape(-1, 2)
            for g, size in zip(groups.T, sizes, strict=True)
        ]
        counts = [table + np.round(rng.normal(0, sd, table.shape)) for table in whole]
        counts[2] = np.where(counts[2] < 15, np.nan, counts[2])
        for limits, found in (([None, None, 15.0], slopes), (None, ignoring)):
            evidence = count_evidence(groups, counts, CountNoise(sd**2 + 1 / 12, None, limits), n)
            found.append((evidence.loss(scores)[1].T @ design)[1])
    z, biased = (
        np.mean(s, axis=0) / (np.std(s, axis=0) / np.sqrt(400)) for s in (slopes, ignoring)
    )
    assert np.abs(z).max() < norm.isf(MISTAKE / 6)
    # what was published is the larger part of the noise
    assert abs(biased[2]) > norm.isf(MISTAKE / 6)


def test_the_truth_is_recovered():
    """The error of log-odds is small, and falls as the rows grow."""
    errors = []
    for n in (2_000, 32_000):
        rows, p, y = people(n)
        by = [["city", "age"], ["age", "job"], ["city", "job"]]
        tables = [table_of(crossed(rows, y, names, 10.0), names, 100.0) for names in by]
        model = CountsClassifier(make_pipeline(OneHotEncoder(), LogisticRegression(C=100.0))).fit(
            rows, tables
        )
        proba = np.clip(model.predict_proba(rows)[:, 1], 1e-9, 1 - 1e-9)
        errors.append((np.log(proba / (1 - proba)) - np.log(p / (1 - p))).std())
    assert errors[1] < 0.08 and errors[1] < errors[0] / 2


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"groups": np.zeros((6, 2), int)}, "table of counts for each of 2"),
        ({"groups": np.zeros((6, 3, 1), int)}, "a column for each table"),
        ({"groups": np.full((6, 1), 2)}, r"groups in 0\.\.1"),
        ({"groups": np.full((6, 1), -2)}, r"groups in 0\.\.1"),
        ({"counts": [np.full((2, 3), np.inf)]}, "finite"),
        ({"variance": [-1.0]}, "variance"),
        ({"variance": [np.ones((3, 3))]}, "variance"),
        ({"variance": [1.0, 1.0]}, "variance for each of 1"),
        ({"below": [1.0, 2.0]}, "below for each of 1"),
        ({"released": (np.zeros((2, 2)), np.zeros((2, 2)))}, r"shape \(2, 3\)"),
        ({"released": (np.zeros((2, 3)), np.zeros((2, 3)))}, "features"),
    ],
)
def test_arrays_that_make_no_sense(given, named):
    told = {
        "groups": np.array([[0], [0], [0], [1], [1], [1]]),
        "counts": [np.ones((2, 3))],
        "variance": 1.0,
    } | given
    with pytest.raises(ValueError, match=named):
        SoftmaxRegression().fit_counts(np.arange(12.0).reshape(6, 2), **told)


# Tables as people have them
# --------------------------------------------------------------------------------------------------


def frames() -> Iterator[object]:
    wide = pd.DataFrame(
        {"city": ["Graz", "Wien"], "no": [10.5, -3.0], "yes": [np.nan, 7.0], "v": [4.0, 9.0]}
    )
    yield wide
    yield wide.astype({"city": "category"})
    yield pa.table(
        {"city": ["Graz", "Wien"], "no": [10.5, -3.0], "yes": [None, 7.0], "v": [4.0, 9.0]}
    )
    yield {"city": np.array(["Graz", "Wien"]), "no": [10.5, -3.0], "yes": [None, 7.0], "v": [4, 9]}


@pytest.mark.parametrize("frame", list(frames()), ids=["pandas", "categories", "arrow", "mapping"])
def test_frames_of_all_kinds_are_read(frame):
    table = CountTable.from_frame(frame, "city", {False: "no", True: "yes"}, variance="v")
    assert (
        table.by == ("city",)
        and table.cells == (("Graz",), ("Wien",))
        and table.classes == (False, True)
    )
    assert np.array_equal(table.counts, [[10.5, np.nan], [-3.0, 7.0]], equal_nan=True)
    assert np.array_equal(table.variance, [[4.0, 4.0], [9.0, 9.0]])


def test_a_table_of_totals_is_read():
    totals = CountTable.from_frame(
        {"no": [7.0], "yes": [3.0]}, (), {"no": "no", "yes": "yes"}, variance=0.0
    )
    assert totals.cells == ((),)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"by": "town"}, "column 'town' in the table"),
        ({"counts": {"no": "no", "yes": "yess"}}, "Did you mean 'yes'"),
        ({"counts": "no"}, "mapping of class values"),
        ({"counts": {}}, "mapping of class values"),
        ({"counts": {"no": "no", "yes": "city"}}, "suppressed_below"),
        ({"counts": {"no": "endless"}}, "infinite"),
        ({"counts": {"no": "nothing"}}, "at least one count"),
        ({"by": "same"}, "twice"),
        ({"by": "gap"}, "none in row 1"),
        ({"by": "mixed"}, "several types"),
        ({"variance": -1.0}, "0 <= variance"),
        ({"variance": np.nan}, "0 <= variance"),
        ({"variance": "no"}, "0 <= variance"),
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"suppressed_below": -1.0}, "suppressed_below"),
        ({"frame": [1, 2]}, "got columns none"),
    ],
)
def test_frames_that_make_no_sense(given, named):
    frame = pd.DataFrame(
        {
            "city": ["Graz", "Wien"],
            "same": ["Graz", "Graz"],
            "gap": ["Graz", None],
            "mixed": ["Graz", 3],
            "no": [1.0, -2.0],
            "yes": [3.0, 4.0],
            "endless": [1.0, np.inf],
            "nothing": [np.nan, np.nan],
        }
    )
    told = {
        "frame": frame,
        "by": "city",
        "counts": {"no": "no", "yes": "yes"},
        "variance": 1.0,
    } | given
    with pytest.raises(ldp.InvalidInput, match=named):
        CountTable.from_frame(told.pop("frame"), told.pop("by"), told.pop("counts"), **told)


# Asking for several
# --------------------------------------------------------------------------------------------------


def test_groupings_are_asked_at_one_cost_and_come_back_by_name(ledger):
    rows, _, y = people(3000)
    asked = Groupings(rows, by=[("city", "age"), "job"])
    labels = ldp.PrivateLabels(y, classes=[0, 1], dataset="d", column="bought", ledger=ledger)
    answer = ldp.aggregate(labels, asked.query(2, epsilon=80.0), asked.groups)
    assert ledger.spent("d", "bought") == 80.0 and len(ledger.runs()) == 1
    first, second = asked.tables(answer)
    exact = crossed(rows, y, ["city", "age"])
    assert dict(zip(first.cells, first.counts.tolist(), strict=True)) == {
        (c, a): [n, m] for c, a, n, m in exact.itertuples(index=False)
    }
    assert (
        second.by == ("job",)
        and len(second.cells) == 4
        and second.variance == answer.query.standard_deviation() ** 2
    )
    assert first.variance == second.variance < 1e-6


def test_the_label_column_is_no_group():
    """Its counts would be published without noise, as the sizes of the groups."""
    rows, _, y = people(3000)
    rows = rows.assign(bought=y)
    asked = Groupings(rows, by=[("city", "bought"), "job"])
    query = asked.query(2, epsilon=1.0)
    one = ldp.aggregates.Histogram(2, 1.0, 2)
    for labels, asks, groups, column in (
        (y, query, asked.groups, "bought"),
        (y, query, asked.groups[:], "bought"),
        (rows["bought"], query, asked.groups, None),
        (rows["bought"], query, asked.groups[:], None),
        (y, one, None, "bought"),
        (rows["bought"], one, rows["bought"].copy(), "label"),
        (y, one, rows["bought"], "bought"),
    ):
        private = ldp.PrivateLabels(labels, classes=[0, 1], column=column, noise=SEED)
        with pytest.raises(ldp.InvalidInput, match=r"labels are private|the labels themselves"):
            ldp.aggregate(private, asks, private if groups is None else groups)
    paid = ldp.PrivateLabels(y, classes=[0, 1], column="paid", noise=SEED)
    assert ldp.aggregate(paid, query, asked.groups).n_groups == sum(asked.sizes)


def test_rows_over_their_units_cap_are_no_part_of_the_tables():
    rows, _, y = people(4000)
    asked = Groupings(rows, by=["city", "job"])
    labels = ldp.PrivateLabels(
        y, classes=[0, 1], unit=np.arange(4000) // 2, max_rows_per_unit=1, noise=SEED
    )
    tables = asked.tables(ldp.aggregate(labels, asked.query(2, epsilon=5.0), asked.groups))
    assert 0.3 < np.min(tables[0].share) <= np.max(tables[0].share) < 0.7
    model = CountsClassifier(regression()).fit(rows, tables)
    assert abs(model.predict_proba(rows)[:, 1].mean() - y.mean()) < 0.05


@pytest.mark.parametrize(
    ("by", "named"),
    [
        ([], "at least one table"),
        ([("city", "town")], "column 'town' in the rows"),
        ([("city", "city")], "different columns"),
        ([("city", "province")], "'province' is a function of 'city'"),
        (["city", "province"], "same groups"),
        ([("city", "age"), ("age", "city")], "same groups"),
        ([("city", "gap")], "none in row 0"),
    ],
)
def test_groupings_that_waste_epsilon_or_make_no_sense(by, named):
    rows, _, _ = people(500)
    rows["province"] = rows["city"].map({"Graz": "S", "Linz": "O", "Wien": "W"})
    rows["gap"] = [None, *rows["age"][1:]]
    with pytest.raises(ldp.InvalidInput, match=named):
        Groupings(rows, by=by)


def test_an_answer_about_other_groups_is_no_table_of_these():
    rows, _, y = people(900)
    groups = pd.factorize(rows["city"])[0]
    answer = ldp.aggregate(
        ldp.PrivateLabels(y, classes=range(2), noise=SEED),
        ldp.aggregates.Histogram(2, 50.0, 3),
        groups,
    )
    with pytest.raises(ldp.InvalidInput, match="the query of these groupings"):
        Groupings(rows, ["city"]).tables(answer)


# The classifier
# --------------------------------------------------------------------------------------------------


def fitted(rows: pd.DataFrame, tables: list[CountTable], **more: object) -> CountsClassifier:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ldp.LabelDPWarning)
        return CountsClassifier(regression()).fit(rows, tables, **more)


def test_overlapping_tables_say_more_than_one_of_them():
    rows, p, y = people(5000)
    tables = [
        table_of(crossed(rows, y, by, 15.0), by, 225.0)
        for by in (["city", "age"], ["age", "job"], ["job"])
    ]
    off = [
        np.abs(fitted(rows, some).predict_proba(rows)[:, 1] - p).mean()
        for some in (tables[:1], tables[1:2], tables)
    ]
    assert off[2] < 0.03 < min(off[:2])
    model = CountsClassifier().fit(rows, tables)  # with its own encoding of the columns
    assert np.abs(model.predict_proba(rows)[:, 1] - p).mean() < 0.03
    assert set(model.predict(rows[:5])) <= {"no", "yes"} and clone(model).estimator is None
    assert np.abs(model.posterior_[:, 1] - p).mean() < 0.05


@pytest.mark.parametrize("kind", ["text", "timestamps"])
def test_dates_are_numbers_without_an_estimator(kind):
    """The tables count by month, and days to come are told by their time: a category of each day
    could not."""
    day = pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(3000) % 600, "D"))
    y = (day >= pd.Timestamp("2024-10-01")).astype(int).to_numpy()
    written = day.dt.strftime("%Y-%m-%d") if kind == "text" else day
    public = pd.DataFrame({"month": day.dt.strftime("%Y-%m"), "city": np.resize(CITIES, 3000)})
    # one is missing
    features = pd.DataFrame({"day": written.where(np.arange(3000) != 7), "city": public["city"]})
    table = table_of(crossed(public, y, ["month"]), ["month"])
    model = CountsClassifier().fit(features, [table], rows=public)
    assert (model.predict(features) == np.where(y, "yes", "no"))[np.arange(3000) != 7].mean() > 0.95
    new = pd.DataFrame(
        {"day": pd.to_datetime(["2023-05-01", "2026-01-01"]), "city": ["Graz", "Wien"]}
    )
    assert model.predict(
        new.assign(day=new.day.astype(str)) if kind == "text" else new
    ).tolist() == ["no", "yes"]


def test_features_may_be_an_array_beside_the_public_columns():
    rows, p, y = people(2000)
    X = OneHotEncoder(sparse_output=False).fit_transform(rows)
    tables = [table_of(crossed(rows, y, [name]), [name]) for name in rows]
    model = CountsClassifier(LogisticRegression()).fit(X, tables, rows=rows)
    assert np.abs(model.predict_proba(X)[:, 1] - p).mean() < 0.04
    with pytest.raises(ldp.InvalidInput, match="rows= with the public columns"):
        CountsClassifier(LogisticRegression()).fit(X, tables)
    with pytest.raises(ldp.InvalidInput, match="as many public rows as X"):
        CountsClassifier(LogisticRegression()).fit(X[1:], tables, rows=rows)


def test_a_released_table_beside_the_counts_adds_what_they_lack():
    """The tables say nothing of jobs; noisy labels of a tenth of the rows do."""
    rows, p, y = people(8_000)
    names = np.array(["no", "yes"])
    noisy = ldp.privatize(
        ldp.PrivateLabels(names[y[:1500]], classes=names, noise=SEED),
        ldp.RandomizedResponse(2, 3.0),
    )
    tables = [table_of(crossed(rows, y, ["city", "age"]), ["city", "age"])]
    alone, both = fitted(rows, tables), fitted(rows, tables, released=(rows[:1500], noisy))
    rows_alone = ldp.LabelDPClassifier(regression(), random_state=0).fit(rows[:1500], noisy)
    off = [
        np.abs(model.predict_proba(rows)[:, 1] - p).mean() for model in (alone, rows_alone, both)
    ]
    assert off[2] < 0.8 * min(off[:2])


def test_a_student_learns_what_is_no_sum_of_columns():
    """Labels that are an exclusive or of two columns: the linear model cannot have them, boosting
    on its posterior does."""
    rng = np.random.default_rng(5)
    rows = pd.DataFrame(
        {"a": rng.integers(0, 2, 4000), "b": rng.integers(0, 2, 4000), "c": rng.normal(size=4000)}
    )
    y = (rows.a ^ rows.b).to_numpy()
    table = table_of(crossed(rows, y, ["a", "b"], 5.0), ["a", "b"], 25.0)
    linear = CountsClassifier().fit(rows, [table])
    taught = CountsClassifier(student=HistGradientBoostingClassifier(max_iter=20)).fit(
        rows, [table]
    )
    assert (
        linear.score(rows, np.array(["no", "yes"])[y])
        < 0.8
        < 0.9
        < taught.score(rows, np.array(["no", "yes"])[y])
    )
    assert not hasattr(taught.set_params(student=None).fit(rows, [table]), "student_")
    with pytest.raises(ldp.InvalidInput, match="sample_weight"):
        CountsClassifier(student=KNeighborsClassifier()).fit(rows, [table])


def test_suppressed_cells_are_known_to_be_small():
    """Cells without a number, or not listed at all; those who ignore them learn from the larger
    part of the counts alone."""
    rows, _, y = people(6000)
    rows["street"] = np.random.default_rng(6).integers(0, 300, 6000)
    frame = crossed(rows, y, ["street"])
    frame = frame.assign(**{c: frame[c].where(frame[c] >= 10) for c in ("no", "yes")})
    frame = frame[frame[["no", "yes"]].notna().any(axis=1)]
    off = []
    for limit in (10.0, None):
        table = table_of(frame, ["street"], suppressed_below=limit)
        model = CountsClassifier(
            make_pipeline(OneHotEncoder(), LogisticRegression()), classes=["no", "yes"]
        ).fit(rows[["age"]], [table], rows=rows)
        off.append(abs(model.predict_proba(rows[["age"]])[:, 1].mean() - y.mean()))
    assert off[0] < 0.02 and off[1] > 2 * off[0]


def test_counts_of_one_class_alone():
    """Conversions by campaign: the impressions are the public rows."""
    rows, p, y = people(5000)
    tables = [
        CountTable.from_frame(crossed(rows, y, [name], 5.0), name, {"yes": "yes"}, variance=25.0)
        for name in rows
    ]
    model = CountsClassifier(regression(), classes=["no", "yes"]).fit(rows, tables)
    assert np.abs(model.predict_proba(rows)[:, 1] - p).mean() < 0.03
    with pytest.raises(ldp.InvalidInput, match="pass classes="):
        CountsClassifier(regression()).fit(rows, tables)


@pytest.mark.parametrize(
    ("counts", "variance", "named"),
    [
        (
            [600.0, 300.0, 300.0],
            25.0,
            (
                "add up to at most 900, the rows in its cells, got 1,200 with noise of standard"
                " deviation 8.66"
            ),
        ),
        ([0.0, 300.0, 400.0], 25.0, "at most the number of rows in the cell, 300, got 400"),
        ([-100.0, 300.0, 300.0], 25.0, "at least 0 .* got -100"),
        ([301.0, 0.0, 0.0], 0.0, "at most the number of rows in the cell, 300, got 301"),
    ],
)
def test_counts_of_one_class_that_the_rows_cannot_have(counts, variance, named):
    rows = pd.DataFrame({"city": np.repeat(CITIES, 300)})
    table = CountTable(
        ("city",), tuple((city,) for city in CITIES), ("yes",), np.array(counts)[:, None], variance
    )
    with pytest.raises(ldp.InvalidInput, match=named):
        CountsClassifier(regression(), classes=["no", "yes"]).fit(rows, [table])


def test_noise_alone_is_no_reason_to_refuse_counts():
    """Exact: the tail of discrete Laplace noise beyond what is allowed, to one side."""
    for epsilon in np.geomspace(1e-3, 40.0, 400):
        a, variance = (
            epsilon / 2,
            ldp.aggregates.Histogram(2, float(epsilon), 1).standard_deviation() ** 2,
        )
        k = next(
            k
            for k in itertools.count(int(10 * variance**0.5))
            if _off(float(k), 0.0, 0.0, variance)
        )
        assert np.exp(-a * k) / (1 + np.exp(-a)) < 2e-7, epsilon


def test_a_part_of_the_rows_was_counted():
    rows, p, y = people(8000)
    some = np.random.default_rng(7).random(8000) < 0.4
    frames = {name: crossed(rows[some], y[some], [name]) for name in rows}
    model = fitted(rows, [table_of(frame, [name], share=0.4) for name, frame in frames.items()])
    assert np.abs(model.predict_proba(rows)[:, 1] - p).mean() < 0.05
    with pytest.raises(ldp.InvalidInput, match=r"add up to about 8,000.*pass share=0\.4"):
        fitted(rows, [table_of(frame, [name]) for name, frame in frames.items()])
    with pytest.raises(ldp.InvalidInput, match="other rows: pass the rows that it counted"):
        fitted(rows[some], [table_of(crossed(rows, y, ["city"]), ["city"])])


def test_levels_that_no_row_has_are_ignored_with_a_word():
    rows, _, y = people(3000)
    frame = crossed(rows, y, ["city"])
    more = pd.concat([frame, pd.DataFrame({"city": ["Bonn"], "no": [400.0], "yes": [90.0]})])
    with pytest.warns(ldp.LabelDPWarning, match="about 490 rows in 1 cells .*Bonn"):
        found = CountsClassifier(regression()).fit(rows, [table_of(more, ["city"])])
    assert np.allclose(
        found.predict_proba(rows), fitted(rows, [table_of(frame, ["city"])]).predict_proba(rows)
    )
    # a level without rows has noise alone
    noise = pd.DataFrame({"city": ["Bonn"], "no": [30.0], "yes": [-9.0]})
    fitted(rows, [table_of(pd.concat([frame, noise]), ["city"], variance=400.0)])


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda rows, frame: (rows, []), "one or more CountTable"),
        (lambda rows, frame: (rows, [frame]), "from_frame"),
        (
            lambda rows, frame: (rows.drop(columns="city"), [table_of(frame, ["city"])]),
            "column 'city' in the rows",
        ),
        (
            lambda rows, frame: (rows, [table_of(frame.assign(city=[1, 2, 3]), ["city"])]),
            r"\(1,\) in the table and \('",
        ),
        (
            lambda rows, frame: (rows.assign(city=None), [table_of(frame, ["city"])]),
            "none in row 0",
        ),
        (
            lambda rows, frame: (rows, [table_of(frame, ["city"]), table_of(frame * 2, ["city"])]),
            "Write levels alike",
        ),
    ],
)
def test_tables_that_do_not_fit_the_rows(make, named):
    rows, _, y = people(300)
    X, tables = make(rows, crossed(rows, y, ["city"]))
    with pytest.raises(ldp.InvalidInput, match=named):
        CountsClassifier(regression()).fit(X, tables)


def test_classes_and_estimators_that_do_not_fit():
    rows, _, y = people(300)
    table = table_of(crossed(rows, y, ["city"]), ["city"])
    other = CountTable(("city",), table.cells, ("no", "maybe"), table.counts, 0.0)
    with pytest.raises(ldp.InvalidInput, match="'maybe' too"):
        CountsClassifier(regression(), classes=["no", "yes"]).fit(rows, [table, other])
    noisy = ldp.privatize(
        ldp.PrivateLabels(np.array(["yes", "no"])[y], classes=["yes", "no"], noise=SEED),
        ldp.RandomizedResponse(2, 1.0),
    )
    with pytest.raises(ldp.InvalidInput, match="order of the noisy labels"):
        CountsClassifier(regression(), classes=["no", "yes"]).fit(
            rows, [table], released=(rows, noisy)
        )
    with pytest.raises(ldp.InvalidInput, match="NoisyLabels"):
        CountsClassifier(regression()).fit(rows, [table], released=(rows, y))
    with pytest.raises(ldp.InvalidInput, match="student="):
        CountsClassifier(GaussianNB()).fit(rows, [table])


def test_totals_alone_are_kept():
    rows, _, _ = people(2000)
    # So near to one half that noise could have made it, but there is none.
    totals = CountTable((), ((),), ("no", "yes"), np.array([[992.0, 1008.0]]), 0.0)
    with pytest.warns(UntrainedWarning, match="each of 2,000 training rows"):
        model = CountsClassifier(regression()).fit(rows, [totals])
    assert np.allclose(model.predict_proba(rows)[:, 1].mean(), 0.504, atol=5e-4)
