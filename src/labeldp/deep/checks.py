# SPDX-License-Identifier: Apache-2.0
"""What losses refuse. Shapes are always looked at; values only where that is cheap, since a GPU has to be waited for."""

import torch
from torch import Tensor

from labeldp.deep.forms import Dense, Form, Sum
from labeldp.errors import InvalidInput


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
