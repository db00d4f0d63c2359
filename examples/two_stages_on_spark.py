# SPDX-License-Identifier: Apache-2.0
"""Two stages of a release on Spark with scikit-learn between them (LP-MST): one charge of epsilon,
every row's label drawn once.

    python examples/two_stages_on_spark.py [FOLDER]

Half of the rows are released first. What a model learns from them is the prior for the other half,
whose noisy labels then tell more.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import labeldp as ldp
from labeldp.app import stage
from labeldp.tables import Place, spark

ROWS, TEST_ROWS, CLASSES, EPSILON = 8_000, 4_000, 10, 1.0
FEATURES = [f"x{i}" for i in range(16)]
PRIOR = [f"p{k}" for k in range(CLASSES)]


def make_table(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Write the private table in four files; returns features and labels to test on, which no
    release has seen."""
    X, y = make_classification(
        ROWS + TEST_ROWS,
        len(FEATURES),
        n_informative=12,
        n_classes=CLASSES,
        n_clusters_per_class=1,
        class_sep=1.6,
        random_state=0,
    )
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "id": np.arange(ROWS),
            **{name: X[:ROWS, i] for i, name in enumerate(FEATURES)},
            "label": y[:ROWS],
        }
    )
    for part in range(4):
        pq.write_table(table.slice(part * ROWS // 4, ROWS // 4), folder / f"rows-{part}.parquet")
    return X[ROWS:], y[ROWS:]


def columns(names: list[str], *paths: Path) -> np.ndarray:
    """(n, columns) of the rows of all tables."""
    return np.vstack(
        [np.column_stack(pq.read_table(path, columns=names).columns) for path in paths]
    )


def learn(*released: Path) -> ldp.LabelDPClassifier:
    """Any learner would do; this one makes use of all that the noisy labels tell. It costs nothing:
    the labels are released."""
    noisy = ldp.concat([ldp.read_noisy(path) for path in released])
    print(f"  learning from {len(noisy):,} rows, {noisy.privacy.epsilon:g}-label-DP in total")
    model = ldp.LabelDPClassifier(LogisticRegression(max_iter=200), random_state=0)
    return model.fit(columns(FEATURES, *released), noisy, ids=columns(["id"], *released))


def main(folder: Path) -> None:
    """Plan, release, train, release, train."""
    X_test, y_test = make_table(folder / "private")
    ledger = ldp.Ledger(folder / "ledger" / "ledger.db")
    spec = ldp.ReleaseSpec("label", range(CLASSES), EPSILON, "auto", "id", dataset="two-stages")
    plan = stage.plan(folder / "plan", spec, parts=(0.5, 0.5), ledger=ledger)
    session = spark.start()
    session.conf.set("spark.sql.shuffle.partitions", 4)  # the table is small
    rows = spark.read(session, Place.of(folder / "private"))

    print("stage 1: every class is as likely as any other")
    spark.release(rows, folder / "stage-1", plan.spec(1), plan.ledger)
    model = learn(folder / "stage-1")
    print(f"  accuracy {model.score(X_test, y_test):.3f}")

    print("stage 2: the model says what is likely")
    table = pq.read_table(folder / "private", columns=["id", *FEATURES])
    probabilities = model.predict_proba(np.column_stack(table.columns[1:]))
    prior = pa.table(
        {"id": table["id"], **{name: probabilities[:, k] for k, name in enumerate(PRIOR)}}
    )
    pq.write_table(prior, folder / "prior.parquet")
    with_prior = rows.join(session.read.parquet(str(folder / "prior.parquet")), "id")
    spark.release(with_prior, folder / "stage-2", plan.spec(2, PRIOR), plan.ledger)
    both = learn(folder / "stage-1", folder / "stage-2")
    print(f"  accuracy {both.score(X_test, y_test):.3f}")

    print("state:", stage.status(plan)["state"])
    print(f"spent: epsilon {ledger.spent('two-stages', 'label'):g}")
    session.stop()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
