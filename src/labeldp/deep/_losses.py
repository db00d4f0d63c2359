# SPDX-License-Identifier: Apache-2.0
"""Losses on logits from noisy labels.

With p = softmax(logits), every loss on a table has the gradient (sum of q) p - q, for a target q that the table and the model decide:

    likelihood   q = posterior of the row's label, p L / sum(p L)      value -ln sum(p L): exact maximum likelihood
    posterior    q = posterior under a prior, held fixed               value -sum(q ln p): cross-entropy, as in ALIBI
    debiased     q = unbiased weights, which may be negative           value -sum(q ln p): its expectation is the loss at the true label

so one function computes value and gradient together, a few rows at a time, in float32 whatever the logits are.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from labeldp import _validate
from labeldp.deep._forms import Dense, Form, Sum
from labeldp.errors import InvalidInput

Reduction = Literal["mean", "sum", "none"]
Part = tuple[Tensor, Tensor, Tensor | None]
Kind = Callable[[Tensor, Form], Part]
"""(logits (m, K), form of m rows) to the (m,) part of the value beside ln sum exp(logits), the target (m, K), its sum a row (1 if None)."""

_CELLS_CPU = 1 << 17  # worked on at a time: a few tables of as many float32 fit the cache
_CELLS_DEVICE = 1 << 25


def likelihood_loss(logits: Tensor, log_likelihood: Tensor | Form, reduction: Reduction = "mean", *, check: bool | None = None) -> Tensor:
    """-ln sum_y softmax(logits)_y L_y: exact maximum likelihood from noisy labels.

    Parameters
    ----------
    logits : (n, K) float tensor, half precision allowed
    log_likelihood : (n, K) float tensor, or a form of n rows
        ln P[output | y] up to a constant a row; -inf where an output is impossible. A form (`Candidates`, `PackedSets`, ...) needs no
        n x K memory.
    reduction : {"mean", "sum", "none"}
    check : bool, optional
        Whether to refuse values that are not finite: (n,) comparisons, but a GPU has to be waited for. By default on the CPU only.

    Returns
    -------
    float32 tensor (float64 for float64 logits): a number, or (n,) for "none". At least 0 where the rows' largest log-likelihood is 0.

    Raises
    ------
    InvalidInput
        Shapes that do not match; with `check`, logits that are NaN or infinite, and rows whose likelihood is zero for every class.

    Notes
    -----
    Gradient: softmax - posterior. Not differentiable twice. Cost: O(n K) time; memory of one (n, K) table of the logits' type, of float32
    for float16.
    Source: forward correction, Patrini et al. 2017, with each row's own law; see docs on the likelihood of a law.

    Examples
    --------
    >>> ll = torch.tensor([[0.0, -1.0, -1.0]])
    >>> round(float(likelihood_loss(torch.zeros(1, 3), ll)), 4)
    0.5472
    """
    return _loss(_likelihood, logits, log_likelihood, reduction, check)


def posterior_loss(
    logits: Tensor,
    log_likelihood: Tensor | Form,
    reduction: Reduction = "mean",
    *,
    prior: Literal["model", "uniform"] | Tensor = "model",
    check: bool | None = None,
) -> Tensor:
    """Cross-entropy against the posterior of each row's label: soft labels, as ALIBI trains.

    Parameters
    ----------
    logits : (n, K) float tensor
    log_likelihood : (n, K) float tensor, or a form of n rows
    reduction : {"mean", "sum", "none"}
    prior : "model", "uniform", or (K,) or (n, K) tensor of non-negative weights
        "model" takes softmax(logits), held fixed: then the gradient is that of `likelihood_loss`.
    check : bool, optional
        As in `likelihood_loss`.

    Returns
    -------
    As `likelihood_loss`. Cost O(n K).

    Notes
    -----
    Source: Malek et al., "Antipodes of label differential privacy" (2021), section 3.
    """
    if isinstance(prior, Tensor):
        log_prior = _log_prior(prior, logits, check)
        return _loss(_soft_labels, logits, as_form(log_likelihood, logits, log_prior), reduction, check)
    kind = {"model": _model_posterior, "uniform": _soft_labels}[_validate.one_of(("model", "uniform"), prior=prior)]
    return _loss(kind, logits, log_likelihood, reduction, check)


def debiased_loss(logits: Tensor, weights: Tensor | Form, reduction: Reduction = "mean", *, check: bool | None = None) -> Tensor:
    """-sum_y w_y ln softmax(logits)_y, whose expectation over the law is the cross-entropy at the true label.

    Parameters
    ----------
    logits : (n, K) float tensor
    weights : (n, K) float tensor, or a form of n rows
        Of `debias_weights`; rows sum to 1, some are negative, so that the loss has no lower bound: stop early, or prefer likelihoods.
    reduction : {"mean", "sum", "none"}
    check : bool, optional
        As in `likelihood_loss`.

    Returns
    -------
    As `likelihood_loss`, but of any sign. Cost O(n K).

    Notes
    -----
    Source: Ghazi et al. 2021, equation 7; Natarajan et al. 2013.
    """
    return _loss(_weighted, logits, weights, reduction, check)


def cross_entropy(logits: Tensor, labels: Tensor, reduction: Reduction = "mean", *, check: bool | None = None) -> Tensor:
    """-ln softmax(logits) at hard noisy labels: what the papers train with.

    Parameters
    ----------
    logits : (n, K) float tensor
    labels : (n,) int64 tensor in [0, K)
        Noisy ones, of `NoisyLabels.hard_codes`.
    reduction : {"mean", "sum", "none"}
    check : bool, optional
        As in `likelihood_loss`; also refuses labels out of range.

    Returns
    -------
    As `likelihood_loss`. Cost O(n K).
    """
    look = require_labels(logits, labels, check)
    rows = functional.cross_entropy(_wide(logits), labels, reduction="none")
    return _reduced(rows, reduction, logits, None, look)


def generalised_cross_entropy(
    logits: Tensor, labels: Tensor, reduction: Reduction = "mean", *, q: float = 0.7, check: bool | None = None
) -> Tensor:
    """(1 - p_label^q) / q at hard noisy labels: between cross-entropy (q near 0) and mean absolute error (q = 1).

    Parameters
    ----------
    logits : (n, K) float tensor
    labels : (n,) int64 tensor in [0, K)
    reduction : {"mean", "sum", "none"}
    q : float in (0, 1]
    check : bool, optional
        As in `cross_entropy`.

    Returns
    -------
    As `likelihood_loss`. Cost O(n K).

    Notes
    -----
    Source: Zhang and Sabuncu, "Generalized cross entropy loss for training deep neural networks with noisy labels" (2018), equation 6.
    """
    power = _validate.fraction(q=q, one=True)
    look = require_labels(logits, labels, check)
    log_p = functional.log_softmax(_wide(logits), dim=1).gather(1, labels[:, None])[:, 0]
    return _reduced(-torch.expm1(power * log_p) / power, reduction, logits, None, look)


def mixup_loss(
    loss: Callable[..., Tensor],
    logits: Tensor,
    a: Tensor | Form,
    b: Tensor | Form,
    lam: float | Tensor,
    reduction: Reduction = "mean",
    **options: Any,
) -> Tensor:
    """lam loss(logits, a) + (1 - lam) loss(logits, b), for any of the losses here.

    Mixing the losses, unlike mixing likelihoods, is right for evidence: on hard labels it is mixup itself.

    Parameters
    ----------
    loss : function (logits, target, reduction="none", **options) -> (n,) tensor
    logits : (n, K) float tensor
        Of the mixed inputs, lam x_a + (1 - lam) x_b.
    a, b : targets of the two halves of each pair, in whatever shape the loss takes
    lam : float in [0, 1], or tensor of one number or of shape (n,)
    reduction : {"mean", "sum", "none"}
    **options
        Given to the loss.

    Returns
    -------
    As the loss. Cost: two losses.

    Notes
    -----
    Source: Zhang et al., "mixup: beyond empirical risk minimization" (2018).
    """
    lam = _checked_lam(lam, logits) if isinstance(lam, Tensor) else _validate.fraction(lam=lam, zero=True, one=True)
    first = loss(logits, a, reduction="none", **options)
    second = loss(logits, b, reduction="none", **options)
    return _reduce(lam * first + (1 - lam) * second, reduction)


def _checked_lam(lam: Tensor, logits: Tensor) -> Tensor:
    if lam.ndim and lam.shape != logits.shape[:1]:
        raise InvalidInput(f"Expected lam of one number or of shape ({len(logits)},), got {tuple(lam.shape)}. Flatten it.")
    if wants_check(None, lam) and not bool(((lam >= 0) & (lam <= 1)).all()):
        raise InvalidInput("Expected lam from 0 to 1, got others. Draw it from a Beta distribution, as augment.mixup does.")
    return lam


# How each loss makes its target of logits and table -------------------------------------------------------------------------------


def _likelihood(logits: Tensor, form: Form) -> Part:
    target, log_total = _softmax(form.plus(logits))
    return -log_total, target, None


def _model_posterior(logits: Tensor, form: Form) -> Part:
    target = torch.softmax(form.plus(logits), dim=1)
    return -_weighted_sum(target, logits), target, None


def _soft_labels(logits: Tensor, form: Form) -> Part:
    target = torch.softmax(form.expand(logits.shape[1], logits.dtype), dim=1)
    return -_weighted_sum(target, logits), target, None


def _weighted(logits: Tensor, form: Form) -> Part:
    table = form.expand(logits.shape[1], logits.dtype)
    return -_weighted_sum(table, logits), table, table.sum(dim=1)


def _weighted_sum(weights: Tensor, logits: Tensor) -> Tensor:
    total: Tensor = torch.linalg.vecdot(weights, logits)
    return total


def _softmax(values: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax (m, K) and ln sum exp (m,): the largest entry of the first is exp(largest value - the second)."""
    p = torch.softmax(values, dim=1)
    return p, values.amax(dim=1) - p.amax(dim=1).log()


# Value and gradient in one pass ---------------------------------------------------------------------------------------------------


class _Rows(torch.autograd.Function):
    """Losses (n,) of the rows; their gradient is made on the way, while the exponentials are at hand."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, form: Form, kind: Kind, needs_gradient: bool) -> Tensor:
        n, k = logits.shape
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        losses = torch.empty(n, dtype=wide, device=logits.device)
        kept = wide if logits.dtype == torch.float16 else logits.dtype  # float16 has no room for small gradients until they are scaled
        gradient = torch.empty_like(logits, dtype=kept) if needs_gradient else None
        step = max(1, (_CELLS_CPU if logits.device.type == "cpu" else _CELLS_DEVICE) // k)
        for start in range(0, n, step):
            rows = slice(start, start + step)
            part = logits[rows].to(wide)
            p, log_total = _softmax(part)
            value, target, mass = kind(part, form[rows])
            losses[rows] = value + (log_total if mass is None else mass * log_total)
            if gradient is not None:
                gradient[rows] = (p if mass is None else p.mul_(mass[:, None])).sub_(target)
        if gradient is not None:
            ctx.save_for_backward(gradient)
            ctx.step, ctx.dtype = step, logits.dtype
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        if ctx.dtype == upstream.dtype:
            return gradient * upstream[:, None], None, None, None
        scaled = torch.empty_like(gradient, dtype=ctx.dtype)
        for start in range(0, len(gradient), ctx.step):  # multiplied in float32, rounded once
            rows = slice(start, start + ctx.step)
            scaled[rows] = gradient[rows] * upstream[rows, None]
        return scaled, None, None, None


def _loss(kind: Kind, logits: Tensor, table: Tensor | Form, reduction: Reduction, check: bool | None) -> Tensor:
    require_logits(logits)
    form = as_form(table, logits)
    look = wants_check(check, logits, form)
    rows: Tensor = _Rows.apply(logits, form, kind, logits.requires_grad and torch.is_grad_enabled())
    return _reduced(rows, reduction, logits, form, look)


def _reduced(rows: Tensor, reduction: Reduction, logits: Tensor, form: Form | None, look: bool) -> Tensor:
    if look and not bool(torch.isfinite(rows.detach()).all()):
        raise why_not_finite(logits.detach(), form)
    return _reduce(rows, reduction)


def _reduce(rows: Tensor, reduction: Reduction) -> Tensor:
    name = _validate.one_of(("mean", "sum", "none"), reduction=reduction)
    return rows.mean() if name == "mean" else rows.sum() if name == "sum" else rows


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _log_prior(prior: Tensor, logits: Tensor, check: bool | None) -> Tensor:
    require_logits(logits)
    if prior.shape not in (logits.shape, logits.shape[1:]):
        raise InvalidInput(
            f"Expected a prior of shape {tuple(logits.shape[1:])} or {tuple(logits.shape)}, got {tuple(prior.shape)}. Weigh each class."
        )
    weights = prior.detach().to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    if wants_check(check, logits) and not bool(((weights >= 0) & (weights < math.inf)).all() & (weights > 0).any(dim=-1).all()):
        raise InvalidInput(
            "Expected a prior of finite weights, none negative and some above 0 in each row, got others. Give probabilities of the classes."
        )
    return weights.log().expand(logits.shape)


def require_logits(logits: Tensor) -> None:
    """(n, K) floating, at least one row and two classes."""
    if not isinstance(logits, Tensor) or logits.ndim != 2 or not logits.is_floating_point() or not len(logits) or logits.shape[1] < 2:
        found = f"shape {tuple(logits.shape)} of {logits.dtype}" if isinstance(logits, Tensor) else type(logits).__name__
        raise InvalidInput(f"Expected logits as a float tensor (n, K) with n >= 1 and K >= 2, got {found}. Give one output a class.")


def as_form(table: Tensor | Form, logits: Tensor, log_prior: Tensor | None = None) -> Form:
    """The table as a form of the logits' shape, plus a prior's logarithms if given."""
    require_logits(logits)
    n, k = logits.shape
    if isinstance(table, Tensor):
        if table.shape != logits.shape:
            raise InvalidInput(
                f"Expected a table of the logits' shape {(n, k)}, got {tuple(table.shape)}. The model needs one output a class, and the "
                "batch's rows must be those of its evidence."
            )
        table = Dense(table)
    if not isinstance(table, Form):
        raise InvalidInput(
            f"Expected a tensor (n, K) or a form, got {type(table).__name__}. Make one of noisy labels: evidence_of(noisy)[rows]."
        )
    if len(table) != n:
        raise InvalidInput(f"Expected evidence of the batch's {n} rows, got {len(table)}. Index it with the rows of the batch.")
    if not table.fits(k):
        raise InvalidInput(f"Expected evidence over the model's {k} outputs, got another number of classes. Give the model K outputs.")
    if any(t.requires_grad for t in table.tensors):
        raise InvalidInput("Expected evidence without a gradient, got a tensor that requires one: it would get none. Detach it.")
    return table if log_prior is None else Sum((table, Dense(log_prior)))


def wants_check(check: bool | None, logits: Tensor, form: Form | None = None) -> bool:
    """Whether values are to be checked; refuses classes out of range if so."""
    look = logits.device.type == "cpu" if check is None else check
    if look and form is not None and not form.in_range(logits.shape[1]):
        raise InvalidInput(f"Expected classes from 0 to {logits.shape[1] - 1}, got others in the evidence. Give one output a class.")
    return look


def require_labels(logits: Tensor, labels: Tensor, check: bool | None) -> bool:
    """Hard labels that fit the logits; whether values are to be checked."""
    require_logits(logits)
    if not isinstance(labels, Tensor) or labels.shape != logits.shape[:1] or labels.dtype != torch.int64:
        found = f"shape {tuple(labels.shape)} of {labels.dtype}" if isinstance(labels, Tensor) else type(labels).__name__
        raise InvalidInput(f"Expected labels as ({len(logits)},) int64 codes, got {found}. Pass torch.from_numpy(noisy.hard_codes()).")
    look = wants_check(check, logits)
    if look and not bool(((labels >= 0) & (labels < logits.shape[1])).all()):
        raise InvalidInput(f"Expected label codes from 0 to {logits.shape[1] - 1}, got others. Give the model one output a class.")
    return look


def require_generator(generator: object) -> None:
    """A torch.Generator."""
    if not isinstance(generator, torch.Generator):
        found = type(generator).__name__
        raise InvalidInput(f"Expected a torch.Generator, got {found}. Pass generator=torch.Generator().manual_seed(0).")


def why_not_finite(logits: Tensor, form: Form | None) -> InvalidInput:
    """The error for a loss that is not finite."""
    wide = logits.float()
    if bool((bad := wide.isnan().any(dim=1) | (wide == torch.inf).any(dim=1)).any()):
        return InvalidInput(
            f"Expected finite logits, got NaN or inf in {_rows(bad)}. Training has diverged or the inputs hold NaN: lower the "
            "learning rate, clip gradients, check the inputs."
        )
    if form is not None:
        table = form.expand(logits.shape[1])
        if bool((bad := (table.isnan() | (table == torch.inf)).any(dim=1)).any()):
            return InvalidInput(f"Expected evidence of numbers, got NaN or +inf in {_rows(bad)}. Make it with evidence_of(noisy).")
        if bool((bad := (table == -torch.inf).all(dim=1)).any()):
            return InvalidInput(
                f"Expected a likelihood above 0 for some class of every row, got 0 for all in {_rows(bad)}. The evidence contradicts "
                "itself: were draws of different rows combined?"
            )
    return InvalidInput(
        "Expected some probability on classes that the evidence allows, got an infinite loss: logits are -inf there. Do not mask classes "
        "out that a label can be of."
    )


def _rows(bad: Tensor) -> str:
    found = torch.nonzero(bad)[:, 0]
    return f"{len(found)} rows of the batch (first: row {int(found[0])})"
