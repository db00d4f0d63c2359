# SPDX-License-Identifier: Apache-2.0
"""Panels of plots in one PNG, drawn without a display; where matplotlib is missing, nothing is drawn and the caller is told."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Panel = Callable[[Any], object]
"""Draws on the axes that it is given."""


def save(path: Path, rows: Sequence[Sequence[Panel]], *, size=(6.4, 4.2), title: str = "", legend: bool = False, **shared: bool) -> bool:
    """Rows of panels as one PNG. False without matplotlib.

    Parameters
    ----------
    path : Path
    rows : sequence of sequences of functions of axes
        All of one length.
    size : (float, float)
        Of one panel, in inches.
    title : str
    legend : bool
        One for all panels, below them.
    **shared : bool
        sharex, sharey.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figsize = (size[0] * len(rows[0]), size[1] * len(rows))
    figure, axes = pyplot.subplots(len(rows), len(rows[0]), figsize=figsize, layout="constrained", squeeze=False, **shared)
    for place, draw in zip(axes.flat, [draw for row in rows for draw in row], strict=True):
        draw(place)
    if title:
        figure.suptitle(title)
    if legend:
        known = {label: line for place in axes.flat for line, label in zip(*place.get_legend_handles_labels(), strict=True)}
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=len(rows[0]), fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
