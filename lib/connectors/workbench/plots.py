"""Figures of notebooks in one style: a title on the left, units at the axes, text that is legible at half the size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

COLOURS: Final = ("#1f6f8b", "#d1603d", "#6a994e", "#8d6a9f", "#b08968", "#555555")
"""The colours of lines and bars, in order of use."""

_WIDTH: Final = 9.0
_STYLE: Final = {
    "figure.dpi": 110,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.01,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.fontsize": 11,
}


def figure(
    *titles: str,
    x: str | Sequence[str] = "",
    y: str | Sequence[str] = "",
    whole: str = "",
    stacked: bool = False,
    height: float = 3.4,
    **subplots: Any,
) -> tuple[Any, Any]:
    """A matplotlib figure with an empty plot for each of ``titles``: the figure, and its axes, or a list of them.

    ``x`` and ``y`` are the labels of the axes, with the unit: one text for all plots, or one for each. ``whole`` names the axes
    with whole numbers: ``"x"``, ``"y"`` or ``"xy"``. Plots are side by side, or ``stacked``; ``height`` is the height of a row
    in inches. ``subplots`` goes to ``pyplot.subplots`` (``sharex=True``). Show the figure with ``display``, which closes it.
    """
    from cycler import cycler
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    style: Any = {**_STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    pyplot.rcParams.update(style)
    rows, columns = (len(titles), 1) if stacked else (1, len(titles))
    size = (_WIDTH, height * rows)
    drawing, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **subplots)
    plots = list(grid.flat)
    for number, (plot, title) in enumerate(zip(plots, titles, strict=True)):
        plot.set(title=title, xlabel=_label(x, number), ylabel=_label(y, number))
        for name in whole:
            getattr(plot, f"{name}axis").set_major_locator(MaxNLocator(integer=True))
    return drawing, plots if len(plots) > 1 else plots[0]


def _label(labels: str | Sequence[str], number: int) -> str:
    return labels if isinstance(labels, str) else labels[number]
