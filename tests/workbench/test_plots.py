"""Figures of notebooks: titles, units and whole numbers where the notebook asks for them."""

from __future__ import annotations

import matplotlib
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot

from connectors import workbench


def test_a_figure_has_a_title_and_units() -> None:
    figure, axes = workbench.figure("Files that a reader sees", x="seconds", y="files")
    texts = (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel())
    assert texts == ("Files that a reader sees", "seconds", "files")
    pyplot.close(figure)


def test_several_plots_have_their_own_titles_and_units() -> None:
    figure, (left, right) = workbench.figure("Files", "Sizes", x="seconds", y=["files", "KB"])
    assert [plot.get_title(loc="left") for plot in (left, right)] == ["Files", "Sizes"]
    assert [plot.get_ylabel() for plot in (left, right)] == ["files", "KB"]
    assert left.get_position().x0 < right.get_position().x0
    pyplot.close(figure)


@pytest.mark.parametrize("axis", ["x", "y"])
def test_an_axis_of_whole_numbers_has_only_those(axis: str) -> None:
    figure, axes = workbench.figure("Batches", whole=axis)
    axes.plot([0, 1, 2], [0, 1, 2])
    figure.canvas.draw()
    ticks = {name: list(getattr(axes, f"get_{name}ticks")()) for name in "xy"}
    assert all(float(tick).is_integer() for tick in ticks.pop(axis))
    assert not all(float(tick).is_integer() for tick in ticks.popitem()[1])
    pyplot.close(figure)
