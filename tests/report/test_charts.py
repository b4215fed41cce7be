"""Charts and bars: where points lie, what the table says, what is left out."""

import re

import numpy as np
import pytest

from tfdp.report.areas import area_chart
from tfdp.report.axes import SPAN
from tfdp.report.bars import stacked_bars
from tfdp.report.lines import Series, line_chart
from tfdp.report.words import duration, number


def points_of(path):
    return np.array([[float(x), float(y)] for x, y in re.findall(r"([\d.e+]+),([\d.e+]+)", path)])


def test_a_line_goes_through_its_points():
    x, y = np.arange(1.0, 41.0), np.linspace(0, 8, 40) ** 2
    chart = line_chart("T", [Series("s", list(zip(x, y, strict=True)), "s0")], x_label="step")
    drawn = points_of(chart.lines[0].path)
    np.testing.assert_allclose(drawn[:, 0], (x - 1) / 39 * SPAN, atol=0.06)
    np.testing.assert_allclose(drawn[:, 1], SPAN - y / 80 * SPAN, atol=0.06)  # the axis ends at 80
    assert [tick.label for tick in chart.y_ticks] == ["0", "20", "40", "60", "80"]
    assert [tick.percent for tick in chart.y_ticks] == [100, 75, 50, 25, 0]


def test_many_points_are_drawn_as_few_with_a_band():
    y = np.random.default_rng(1).random(5000)
    chart = line_chart("T", [Series("s", list(enumerate(y)), "s0")], x_label="step")
    assert len(points_of(chart.lines[0].path)) == 200
    band = points_of(chart.areas[0].path)
    assert len(band) == 400
    assert np.all(band[:200, 1] <= points_of(chart.lines[0].path)[:, 1])
    assert len(chart.rows) <= 24 and len(chart.tips) <= 100


def test_a_band_of_its_own_goes_from_end_to_end():
    series = Series("s", [(1, 2.0), (2, 2.0)], "s0", band=[(1.0, 3.0), (0.0, 4.0)])
    chart = line_chart("T", [series], x_label="step")
    np.testing.assert_allclose(
        points_of(chart.areas[0].path), [[0, 250], [1000, 0], [1000, 1000], [0, 750]]
    )


def test_tips_cover_the_chart_without_a_gap():
    chart = line_chart("T", [Series("s", [(1, 1.0), (2, 2.0), (9, 3.0)], "s0")], x_label="epoch")
    ends = [tip.left + tip.width for tip in chart.tips]
    assert [tip.left for tip in chart.tips] == pytest.approx([0, *ends[:-1]])
    assert ends[-1] == SPAN
    assert chart.tips[2].text == "epoch 9\ns 3"


def test_what_is_not_finite_is_left_out_and_said():
    points = [(1, float("nan")), (2, 1.0), (3, float("inf")), (4, 2.0)]
    chart = line_chart("T", [Series("s", points, "s0")], x_label="step")
    assert len(points_of(chart.lines[0].path)) == 2
    assert chart.note == "2 values not finite and not drawn."
    assert line_chart("T", [Series("s", points[:1], "s0")], x_label="step") is None


def test_a_series_that_is_missing_at_a_place_has_a_dash_there():
    series = [Series("a", [(1, 1.0), (2, 2.0)], "s0"), Series("b", [(2, 5.0)], "s1")]
    chart = line_chart("T", series, x_label="epoch")
    assert chart.rows == (("1", "1", "–"), ("2", "2", "5"))
    assert len(chart.lines) == 1 and len(chart.dots) == 2  # one point is no line


def test_marks_are_where_the_run_was_restarted():
    points = [(n, 1.0 * n) for n in range(1, 12)]
    chart = line_chart("T", [Series("s", points, "s0")], x_label="step", marks=(6, 99))
    assert chart.marks == (500.0,)


def test_areas_lie_one_on_the_other():
    random = np.random.default_rng(1)
    values = random.random([30, 3])
    samples = [(float(i), dict(zip("abc", row, strict=True))) for i, row in enumerate(values)]
    names = {"a": "A", "b": "B", "c": "C"}
    chart = area_chart("T", samples, names, x_label="step", y_label="ms", words=number)
    top = np.ceil(values.sum(1).max() / 0.5) * 0.5
    below = np.zeros(30)
    for shape, column in zip(chart.areas, values.T, strict=True):
        drawn = points_of(shape.path)
        np.testing.assert_allclose(drawn[:30, 1], SPAN * (1 - (below + column) / top), atol=0.06)
        np.testing.assert_allclose(drawn[30:, 1][::-1], SPAN * (1 - below / top), atol=0.06)
        below = below + column


def test_a_bar_s_parts_are_as_long_as_their_times():
    values = [("rank 0", {"a": 0.010, "b": 0.030}), ("rank 1", {"a": 0.030, "b": 0.020})]
    names = {"a": "A", "b": "B", "c": "never there"}
    bars = stacked_bars("T", values, names, unit="ms", words=duration, scale=1e3)
    assert [tick.label for tick in bars.ticks] == ["0", "10", "20", "30", "40", "50"]
    segments = [[(s.left, s.width) for s in bar.segments] for bar in bars.bars]
    assert segments == [[(0, 200), (200, 600)], [(0, 600), (600, 400)]]
    assert bars.legend == (("a", "A"), ("b", "B"))
    assert bars.rows[1] == ("rank 1", "30 ms", "20 ms", "50 ms")


def test_nothing_to_show_is_no_chart():
    assert stacked_bars("T", [], {"a": "A"}, unit="", words=number) is None
    assert stacked_bars("T", [("x", {"a": 0.0})], {"a": "A"}, unit="", words=number) is None
    options = {"x_label": "step", "y_label": "", "words": number}
    assert area_chart("T", [(1.0, {"a": 1.0})], {"a": "A"}, **options) is None
