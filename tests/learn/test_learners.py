# SPDX-License-Identifier: Apache-2.0
"""The pieces of learning from likelihoods, each against what it must equal."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, make_blobs
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import labeldp as ldp
from labeldp.learn import SoftmaxRegression
from labeldp.learn import _corrections as corrections
from labeldp.learn._corrections import LearnOptions, Model

pytestmark = pytest.mark.filterwarnings("ignore::labeldp.errors.SeededNoiseWarning")


def blobs(n=600, k=3, seed=0, spread=1.0):
    angle = 2 * np.pi * np.arange(k) / k
    return make_blobs(
        n,
        centers=4 * np.column_stack([np.cos(angle), np.sin(angle)]),
        random_state=seed,
        cluster_std=spread,
    )


def noisy_of(y, law, seed=0):
    return ldp.privatize(
        ldp.PrivateLabels(y, classes=range(law.n_classes), noise=ldp.SeededNoise(seed)), law
    )


@pytest.mark.parametrize("k", [2, 4])
def test_softmax_on_known_labels_is_logistic_regression(k):
    X, y = blobs(k=k)
    ours = SoftmaxRegression(C=0.1).fit(X, y).predict_proba(X)
    theirs = LogisticRegression(C=0.1, tol=1e-9, max_iter=1000).fit(X, y).predict_proba(X)
    assert np.allclose(ours, theirs, atol=2e-3)


def test_softmax_sparse_weights_and_impossible_classes():
    X, y = blobs()
    table = np.where(np.eye(3)[y] > 0, 0.0, -np.inf)
    dense = SoftmaxRegression().fit_likelihood(X, table, sample_weight=np.full(len(y), 2.0))
    # weights of 2 weigh like a penalty half as strong
    sparse = SoftmaxRegression(C=2.0).fit_likelihood(csr_matrix(X), table)
    assert np.allclose(dense.coef_, sparse.coef_, atol=1e-3)
    with pytest.raises(ldp.InvalidInput, match="without NaN"):
        SoftmaxRegression().fit_likelihood(X, np.full((len(y), 3), np.nan))
    with pytest.raises(ldp.InvalidInput, match="zero"):
        SoftmaxRegression().fit_likelihood(X, table, sample_weight=np.zeros(len(y)))


def test_softmax_chooses_a_stronger_penalty_for_noisier_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 30))
    y = (X[:, :3].sum(axis=1) > 0).astype(int)
    strengths = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    clean = SoftmaxRegression(C=strengths, random_state=0).fit(X, y)
    noisy = SoftmaxRegression(C=strengths, random_state=0).fit_likelihood(
        X, noisy_of(y, ldp.RandomizedResponse(2, 0.5)).log_likelihood()
    )
    assert noisy.C_ < clean.C_


def test_a_scale_multiplies_coefficients_and_changes_no_prediction():
    rng = np.random.default_rng(0)
    X = rng.normal(1.0, 1.0, size=(300, 4))
    table = noisy_of(
        np.digitize(X[:, 0], [0.5, 1.5]), ldp.RandomizedResponse(3, 3.0)
    ).log_likelihood()
    for more in ({}, {"fit_intercept": False}):
        plain, scaled = (
            SoftmaxRegression(C=0.01, scale=scale, **more).fit_likelihood(X, table)
            for scale in (1.0, 3.0)
        )
        assert scaled.coef_ == pytest.approx(3 * plain.coef_) and (plain.scale_, scaled.scale_) == (
            1,
            3,
        )
        assert np.array_equal(scaled.predict(X), plain.predict(X))
        assert scaled.intercept_.any() == (not more)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": np.nan},
        {"intercept_C": 0},
        {"intercept_C": np.nan},
        {"max_iter": 0},
        {"C": "strong"},
        {"C": []},
        {"C": [[0.1, 1.0]]},
        {"class_prior": (0.2, 0.8), "fit_intercept": False},
    ],
    ids=str,
)
def test_settings_of_a_softmax_regression_are_checked_before_the_charge(wrong, tmp_path):
    X, ledger = np.random.default_rng(0).normal(size=(300, 2)), ldp.Ledger(tmp_path / "ledger.db")
    y = (X[:, 0] > 0).astype(int)
    with pytest.raises(ldp.InvalidInput, match=next(iter(wrong))):
        ldp.LabelDPClassifier(SoftmaxRegression(**wrong), epsilon=1.0).fit(
            X, ldp.PrivateLabels(y, classes=[0, 1], dataset="d", column="label", ledger=ledger)
        )
    assert not ledger.runs()


def test_a_likelihood_counts_up_to_a_factor_of_each_row_and_must_leave_a_class():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    table = (
        noisy_of((X[:, 0] > 1).astype(int), ldp.RandomizedResponse(2, 2.0))
        .log_likelihood()
        .astype(np.float64)
    )
    model = SoftmaxRegression(C=0.1, intercept_C=0.1)
    plain = model.fit_likelihood(X, table).predict_proba(X)
    for factor in (-800.0, 800.0, rng.normal(size=(500, 1)) * 300):
        assert model.fit_likelihood(X, table + factor).predict_proba(X) == pytest.approx(
            plain, abs=1e-3
        )
    for value in (-np.inf, np.inf):
        table[7] = value
        with pytest.raises(ldp.InvalidInput, match="row 7"):
            model.fit_likelihood(X, table)


def test_held_out_rows_choose_a_scale_that_makes_up_for_the_penalty():
    """Few noisy rows need a strong penalty, which alone leaves the probabilities near the
    middle."""
    X, y = load_digits(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    rows, test = slice(0, 1200), slice(1200, None)
    strengths = np.geomspace(1e-3, 1.0, 7)
    for seed in range(2):
        table = ldp.privatize(
            ldp.PrivateLabels(y[rows], classes=range(10), noise=ldp.SeededNoise(seed)),
            ldp.AutoLaw(10, 2.0),
        ).log_likelihood()
        chosen = SoftmaxRegression(C=strengths, intercept_C=0.1, random_state=0).fit_likelihood(
            X[rows], table
        )
        plain = SoftmaxRegression(C=chosen.C_, intercept_C=0.1).fit_likelihood(X[rows], table)
        assert chosen.scale_ > 1.5
        found, without = (
            log_loss(y[test], model.predict_proba(X[test])) for model in (chosen, plain)
        )
        assert found < without - 0.15


def test_groups_choose_no_scale_and_few_of_them_no_penalty():
    """Counts of groups are likely under coefficients that are far too large for single rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2000)
    X, groups = rng.normal(size=(2000, 3)) + y[:, None], rng.integers(0, 60, 2000)
    counts = np.array([np.bincount(y[groups == group], minlength=2) for group in range(60)])
    model = SoftmaxRegression(C=(1e-3, 1.0), random_state=0).fit_counts(
        X, groups, counts, variance=9.0
    )
    assert model.scale_ == 1 and 1e-3 < model.C_ < 1
    noisy = np.log([[0.7, 0.3]])
    for C, found in (((1e-3, 1.0), 0.1), ((0.5, 1.0), 0.5)):
        one = SoftmaxRegression(C=C, random_state=0)
        assert (
            pytest.approx(found)
            == one.fit_counts(X, groups * 0, counts.sum(axis=0)[None], variance=9.0).C_
        )
        assert (
            pytest.approx(found)
            == one.fit_counts(
                X, groups * 0, counts.sum(axis=0)[None], variance=9.0, released=(X[:1], noisy)
            ).C_
        )
        assert pytest.approx(found) == one.fit_likelihood(X[:2], np.tile(noisy, (2, 1))).C_


def test_linear_round_undoes_the_law():
    y = np.random.default_rng(0).choice(4, p=[0.5, 0.3, 0.15, 0.05], size=40_000)
    X = np.zeros((len(y), 1))
    for law in (ldp.RandomizedResponse(4, 1.0), ldp.SubsetSelection(4, 1.0, size=2)):
        noisy = noisy_of(y, law)
        model = corrections.linear_round(
            DummyClassifier(), X, noisy, 10**6, np.random.RandomState(0)
        )
        # the same inverse, reached the other way
        expected = ldp.metrics.class_frequencies(noisy).value
        assert np.allclose(model.predict_proba(X[:1])[0], expected, atol=1e-6)
    thinned = corrections.linear_round(
        DummyClassifier(), X, noisy, 40_000, np.random.RandomState(0)
    )
    assert np.allclose(thinned.predict_proba(X[:1])[0], expected, atol=0.05)


WEIGHTED = [
    make_pipeline(StandardScaler(), RandomForestClassifier(20, min_samples_leaf=20)),
    make_pipeline(StandardScaler(), make_pipeline(GaussianNB())),
    CalibratedClassifierCV(GaussianNB()),
]


@pytest.mark.parametrize("estimator", WEIGHTED, ids=["pipeline", "nested", "ensemble"])
def test_weights_reach_it_with_metadata_routing_on_as_with_it_off(estimator):
    X, y = blobs()
    noisy = noisy_of(y, ldp.RandomizedResponse(3, 2.0))
    found = []
    for on in (False, True):
        with config_context(enable_metadata_routing=on):
            found.append(
                ldp.LabelDPClassifier(estimator, correction="em", random_state=0).fit(
                    X, noisy, sample_weight=np.ones(len(y))
                )
            )
    assert (
        np.array_equal(*(model.predict_proba(X) for model in found)) and found[0].score(X, y) > 0.95
    )


class WithoutGaps(ClassifierMixin, BaseEstimator):
    """Takes codes 0..m-1 alone, and gives no probabilities, as many nets."""

    def fit(self, X, y):
        if not np.array_equal(np.unique(y), np.arange(y.max() + 1)):
            raise IndexError("Target out of bounds")
        self.means_ = np.stack([X[y == code].mean(axis=0) for code in range(y.max() + 1)])
        self.classes_ = np.arange(len(self.means_))
        return self

    def predict(self, X):
        return ((X[:, None] - self.means_) ** 2).sum(axis=2).argmin(axis=1)


def test_codes_with_a_gap_are_renumbered_for_whom_wants_none():
    X, y = blobs()
    codes = np.array([0, 2, 5])[y]
    noisy = ldp.NoisyLabels.from_labels(codes, ldp.RandomizedResponse(6, 3.0))
    model = ldp.LabelDPClassifier(WithoutGaps(), correction="none").fit(X, noisy)
    assert model.score(X, codes) > 0.95 and model.predict_proba(X).shape == (600, 6)
    fitted = corrections.fit_codes(WithoutGaps(), X, np.arange(600), codes)
    assert fitted.classes_.tolist() == [0, 2, 5] and not hasattr(fitted, "predict_proba")
    # what another number of a class does not mend is told as it is
    with pytest.raises(ValueError, match="NaN"):
        corrections.fit_codes(
            LogisticRegression(), np.where(X > 0, np.nan, X), np.arange(600), codes
        )


@pytest.mark.parametrize(
    "estimator",
    [
        KNeighborsClassifier(25),
        GaussianNB(),
        make_pipeline(StandardScaler(), GaussianNB()),
        RandomForestClassifier(20, min_samples_leaf=20),
    ],
    ids=lambda e: type(e).__name__,
)
def test_em_learns_with_and_without_sample_weights(estimator):
    X, y = blobs(1500, k=4, spread=0.6)
    noisy = noisy_of(y, ldp.SubsetSelection(4, 1.0, size=1))
    model = fitted_by_em(estimator, X, noisy, rounds=1)
    assert np.mean(model.predict_proba(X).argmax(axis=1) == y) > 0.9
    capped = corrections.m_step(
        estimator,
        X,
        corrections.posterior(model.predict_proba(X), noisy.likelihood()),
        1,
        1500,
        np.random.RandomState(0),
    )
    assert np.mean(capped.predict_proba(X).argmax(axis=1) == y) > 0.9


def fitted_by_em(estimator, X, noisy, held_out=None, rounds=2):
    return corrections.EMLearner(
        estimator, LearnOptions(em_rounds=rounds), np.random.RandomState(0)
    ).fit(X, noisy, None, held_out)


def test_em_without_a_linear_round_keeps_a_round_only_if_held_out_rows_speak_for_it():
    X, y = blobs(800, spread=0.6)
    noisy = noisy_of(y, ldp.RandomizedResponse(3, 2.0))
    start = Model(DummyClassifier(strategy="prior").fit(X, y), 3)
    even = np.arange(200) % 2 == 0
    for honest in (even, ~even):  # the other half says that every prediction is wrong
        told = noisy_of(
            np.where(honest, y[:200], (y[:200] + 1) % 3), ldp.RandomizedResponse(3, 6.0)
        )
        learner = corrections.EMLearner(
            GaussianNB(), LearnOptions(em_rounds=3), np.random.RandomState(0), linear=False
        )
        model = learner.fit(X, noisy, start, (X[:200], told))
        assert (model.rounds > 0) == honest[0] and model.chose


def test_em_with_a_linear_round_is_the_same_model_whatever_held_out_rows_say():
    """So they can measure it: its rounds are chosen by halves of the rows that it learns from."""
    X, y = blobs(800, spread=0.6)
    noisy = noisy_of(y, ldp.RandomizedResponse(3, 2.0))
    models = [
        fitted_by_em(
            GaussianNB(), X, noisy, (X[:200], noisy_of(told, ldp.RandomizedResponse(3, 6.0)))
        )
        for told in (y[:200], (y[:200] + 1) % 3)
    ]
    assert (
        np.array_equal(models[0].predict_proba(X), models[1].predict_proba(X))
        and not models[0].chose
    )


def test_em_trusts_a_model_as_far_as_rows_that_it_has_not_seen_do():
    """A tree that learns every output by heart says nothing where labels do not depend on the
    features, and nearly all where they do."""
    rng, n = np.random.default_rng(0), 4000
    X, y = rng.normal(size=(n, 2)), (rng.random(n) < 0.05).astype(int)
    nothing = fitted_by_em(
        DecisionTreeClassifier(random_state=0), X, noisy_of(y, ldp.RandomizedResponse(2, 1.0))
    )
    assert nothing.share < 0.1 and not nothing.chose
    assert abs(nothing.predict_proba(X)[:, 1].mean() - 0.05) < 0.04
    X, y = blobs(n, k=4, spread=0.6)
    clear = fitted_by_em(GaussianNB(), X, noisy_of(y, ldp.RandomizedResponse(4, 2.0)))
    assert clear.share > 0.95


@pytest.mark.parametrize(
    "law",
    [ldp.RandomizedResponse(5, 1.0), ldp.SubsetSelection(5, 1.0, size=2), ldp.PriorSplit(5, 2.0)],
)
def test_frequencies_are_those_of_the_labels_and_equal_ones_where_few_rows_cannot_tell(law):
    shares = np.array([0.9, 0.06, 0.025, 0.01, 0.005])
    y = np.random.default_rng(0).choice(5, p=shares, size=60_000)
    prior = np.random.default_rng(1).dirichlet(np.ones(5), size=len(y))
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(5), noise=ldp.SeededNoise(0)),
        law,
        prior=prior if law.uses_prior else None,
    )
    found = ldp.metrics.likeliest_frequencies(noisy.likelihood())
    assert (
        np.abs(found - shares).max() < 0.02 and found.min() > 0 and found.sum() == pytest.approx(1)
    )
    even = np.where(np.eye(2)[np.arange(40) % 2] > 0, 1.0, 0.1)
    # where there is nothing to move
    assert np.array_equal(ldp.metrics.likeliest_frequencies(even), [0.5, 0.5])
    few = noisy_of(np.arange(100) % 5, ldp.RandomizedResponse(5, 0.5))
    assert np.abs(ldp.metrics.likeliest_frequencies(few.likelihood()) - 0.2).max() < 0.1


@pytest.mark.parametrize(
    "law",
    [
        ldp.PriorSplit(5, 1.0),
        ldp.laws.RRWithPrior(5, 1.0),
        ldp.AutoLaw(5, 1.0),
        ldp.RandomizedResponse(5, 1.0),
    ],
)
def test_frequencies_beside_predictions_allow_for_what_rows_were_asked(law):
    """Within six standard deviations of the labels' own frequencies (false alarms below 1e-7);
    outputs alone are wrong by far more."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(20_000, 5)) + np.log([0.5, 0.25, 0.15, 0.07, 0.03])
    belief = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (belief.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1).clip(max=4)
    shares = np.bincount(y, minlength=5) / len(y)
    prior = belief if law.uses_prior else None
    likelihood = ldp.privatize(
        ldp.PrivateLabels(y, classes=range(5), noise=ldp.SeededNoise(0)), law, prior=prior
    ).likelihood()
    assert np.abs(ldp.metrics.frequencies_beside(likelihood, belief) - shares).max() < 6 * np.sqrt(
        0.25 / len(y)
    )
    if law.name == "rr-with-prior":
        assert np.abs(ldp.metrics.likeliest_frequencies(likelihood) - shares).max() > 0.1
    # predictions that favour a class are put right as far as the outputs tell
    tilted = belief * [1, 1, 1, 1, 4]
    wrong = (tilted / tilted.sum(axis=1, keepdims=True)).mean(axis=0)
    assert (
        np.abs(ldp.metrics.frequencies_beside(likelihood, tilted) - shares).max()
        < 0.6 * np.abs(wrong - shares).max()
    )


def test_a_row_of_weight_two_counts_as_two_for_frequencies_beside_predictions():
    rng = np.random.default_rng(5)
    likelihood, belief, weights = (
        rng.random((500, 3)),
        rng.dirichlet(np.ones(3), 500),
        rng.integers(0, 3, 500),
    )
    twice = np.repeat(np.arange(500), weights)
    found = ldp.metrics.frequencies_beside(likelihood, belief, weights)
    assert found == pytest.approx(ldp.metrics.frequencies_beside(likelihood[twice], belief[twice]))
    assert np.abs(found - ldp.metrics.frequencies_beside(likelihood, belief)).max() > 1e-3


def rare(rate, seed, n=20_000, n_test=20_000):
    """Ten columns, of which five tell the rare class; also the true probabilities."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + n_test, 10))
    score = X[:, :5] @ [0.8, -0.6, 0.5, 0.3, 0.2] + 0.6 * (X[:, 0] * X[:, 1] > 0)
    low, high = -20.0, 20.0
    for _ in range(60):
        shift = (low + high) / 2
        low, high = (
            (shift, high) if np.mean(1 / (1 + np.exp(-score - shift))) < rate else (low, shift)
        )
    p = 1 / (1 + np.exp(-score - shift))
    y = (rng.random(len(X)) < p).astype(int)
    return X[:n], y[:n], X[n:], p[n:]


@pytest.mark.parametrize("rate", [0.01, 0.05])
@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(StandardScaler(), LogisticRegression()),
        HistGradientBoostingClassifier(max_iter=15, max_leaf_nodes=15),
    ],
    ids=["regression", "boosting"],
)
def test_probabilities_of_a_rare_class_are_no_worse_than_its_frequency(estimator, rate):
    """Expected log-loss over three fits, which the noise moves by about 3 % of the constant's;
    without care it is half as much again."""
    ours, constant, mean = [], [], []
    for seed in range(3):
        X, y, X_test, p = rare(rate, seed)
        model = ldp.LabelDPClassifier(estimator, epsilon=1.0, random_state=seed).fit(
            X, ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(seed))
        )
        found = model.predict_proba(X_test)[:, 1]
        ours.append(-np.mean(p * np.log(found) + (1 - p) * np.log(1 - found)))
        constant.append(-(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)))
        mean.append(found.mean())
    assert np.mean(ours) < 1.08 * np.mean(constant)
    assert rate / 2 < np.mean(mean) < 2.2 * rate


def test_logistic_regression_is_mapped_only_where_it_is_the_same_model():
    mapped = corrections.exact_learner(make_pipeline(StandardScaler(), LogisticRegression(C=2.0)))
    assert isinstance(mapped[-1], SoftmaxRegression)
    assert max(mapped[-1].C) == 2.0
    assert corrections.exact_learner(LogisticRegression(class_weight="balanced")) is None
    assert corrections.exact_learner(LogisticRegression(l1_ratio=1.0, solver="saga")) is None
    assert corrections.exact_learner(GaussianNB()) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"em_rounds": -1}, "em_rounds"),
        ({"row_budget": 0}, "row_budget"),
        ({"refit": 3}, "refit as True or False"),
    ],
)
def test_options_are_checked(wrong, message):
    with pytest.raises(ldp.InvalidInput, match=message):
        LearnOptions(**wrong)


# Weights of rows and classes
# --------------------------------------------------------------------------------------------------

WEIGHTABLE = {
    "regression": LogisticRegression(),
    "histogram boosting": HistGradientBoostingClassifier(max_iter=30),
    "trees": DecisionTreeClassifier(max_depth=4, min_samples_leaf=50),
}


@pytest.fixture(scope="module")
def half_of_the_rows_lie():
    """Rows of weight 0 have the other class: a learner that reads weights is right on the others,
    and one that does not is lost."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(4000, 3))
    y = (X[:, 0] + 0.3 * rng.normal(size=4000) > 0).astype(int)
    weights = (X[:, 1] > 0).astype(float)
    law = ldp.RandomizedResponse(2, 3.0)
    return (
        X,
        y,
        weights,
        ldp.privatize(
            ldp.PrivateLabels(
                np.where(weights > 0, y, 1 - y), classes=[0, 1], noise=ldp.SeededNoise(3)
            ),
            law,
        ),
    )


@pytest.mark.parametrize("correction", ["auto", "em", "debias", "none"])
@pytest.mark.parametrize("name", WEIGHTABLE)
def test_rows_of_weight_zero_teach_nothing(half_of_the_rows_lie, name, correction):
    X, y, weights, noisy = half_of_the_rows_lie
    X = X[:, [0, 2]]  # without the column that tells which rows lie
    found = [
        np.mean(
            ldp.LabelDPClassifier(WEIGHTABLE[name], correction=correction, random_state=0)
            .fit(X, noisy, given)
            .predict(X)
            == y
        )
        for given in (weights, None)
    ]
    assert found[0] > 0.85 and found[1] < 0.75


@pytest.mark.parametrize("estimator", [*WEIGHTABLE.values(), GaussianNB(), None], ids=str)
def test_few_rows_with_weight_are_enough_wherever_they_are(half_of_the_rows_lie, estimator):
    """No half of the rows that a learner makes is without weight."""
    X, y, *_ = half_of_the_rows_lie
    for seed in range(3):
        weights = np.zeros(400)
        weights[np.random.default_rng(seed).choice(400, 20, replace=False)] = 1.0
        labels = ldp.PrivateLabels(y[:400], classes=[0, 1], noise=ldp.SeededNoise(seed))
        model = ldp.LabelDPClassifier(estimator, epsilon=3.0, random_state=seed)
        assert np.isfinite(model.fit(X[:400], labels, weights).predict_proba(X)).all()


def test_weights_follow_their_rows_when_labels_are_matched_by_ids(half_of_the_rows_lie):
    X, y, weights, _ = half_of_the_rows_lie
    noisy = ldp.privatize(
        ldp.PrivateLabels(
            np.where(weights > 0, y, 1 - y),
            classes=[0, 1],
            ids=np.arange(len(X)),
            noise=ldp.SeededNoise(3),
        ),
        ldp.RandomizedResponse(2, 3.0),
    )
    order = np.random.default_rng(0).permutation(len(X))[:3000]
    mixed = noisy.by_id(order)
    by_id = ldp.LabelDPClassifier(LogisticRegression(), random_state=0, validation_fraction=0).fit(
        X, mixed, weights, ids=np.arange(len(X))
    )
    kept = np.sort(order)
    plain = ldp.LabelDPClassifier(LogisticRegression(), random_state=0, validation_fraction=0).fit(
        X[kept], noisy[kept], weights[kept]
    )
    np.testing.assert_allclose(by_id.predict_proba(X), plain.predict_proba(X), atol=1e-9)
    assert "_weights" not in vars(by_id)


def test_weights_and_arguments_that_cannot_be_used_are_refused_before_the_charge(
    half_of_the_rows_lie, ledger
):
    X, y, weights, _ = half_of_the_rows_lie
    labels = ldp.PrivateLabels(y, classes=[0, 1], dataset="d", column="label", ledger=ledger)

    def fit(estimator, *given, **named):
        model = ldp.LabelDPClassifier(estimator)
        try:
            model.fit(X, labels, *given, **named)
        finally:
            assert "_weights" not in vars(model)

    lacking, negative = weights.copy(), weights.copy()
    lacking[5], negative[7] = np.nan, -2.0
    for wrong, said in (
        (weights[1:], "sample_weight of shape"),
        (lacking, r"finite and >= 0, got nan in row 5 \(the first is row 0\)"),
        (negative, r"finite and >= 0, got -2\.0 in row 7 \("),
        (weights * 0, "sample_weight that is not all zero"),
        (np.arange(len(X)) < 19, "sample_weight above 0 for at least 20 rows, got 19"),
    ):
        with pytest.raises(ldp.InvalidInput, match=said):
            fit(LogisticRegression(), wrong)
    with pytest.raises(ldp.InvalidInput, match="takes sample_weight, got KNeighborsClassifier"):
        fit(KNeighborsClassifier(), weights)
    with pytest.raises(TypeError, match="eval_set"):
        fit(LogisticRegression(), eval_set=[(X, y)])
    assert not ledger.runs()
    with pytest.raises(ldp.InvalidInput, match=r"class codes 0..1, got 7"):
        noisy = ldp.privatize(
            ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(0)),
            ldp.RandomizedResponse(2, 3.0),
        )
        ldp.LabelDPClassifier(LogisticRegression(class_weight={7: 2.0})).fit(X, noisy)


@pytest.mark.parametrize(
    "estimator",
    [LogisticRegression, HistGradientBoostingClassifier],
    ids=["regression", "histogram boosting"],
)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_balanced_class_weights_follow_the_rates_and_not_the_noisy_codes(estimator, epsilon):
    """At epsilon 1 the noisy codes are 0.32 of the rare class, of which there is 0.1: weights by
    them would hardly balance."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20_000, 2))
    y = (rng.random(20_000) < 1 / (1 + np.exp(3 - 1.5 * X[:, 0]))).astype(int)
    noisy = ldp.privatize(
        ldp.PrivateLabels(y, classes=[0, 1], noise=ldp.SeededNoise(5)),
        ldp.RandomizedResponse(2, epsilon),
    )
    rates = ldp.metrics.likeliest_frequencies(noisy.likelihood(dtype="float64"))
    given = [
        ldp.LabelDPClassifier(estimator(class_weight=w), random_state=0).fit(X, noisy)
        for w in ("balanced", dict(enumerate(0.5 / rates)))
    ]
    balanced, same = (model.predict_proba(X)[:, 1] for model in given)
    np.testing.assert_allclose(balanced, same, atol=1e-9)
    true = estimator(class_weight="balanced", random_state=0).fit(X, y).predict_proba(X)[:, 1]
    assert abs(balanced.mean() - true.mean()) < 0.05
    assert abs(balanced.mean() - y.mean()) > 0.2
