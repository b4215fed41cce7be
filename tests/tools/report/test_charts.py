"""Charts and bars: where points lie, what the table says, what is left out."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.base.words import duration, number
from tfdp.tools.report.axes import thinned
from tfdp.tools.report.charts import Series, bar_chart, line_chart


def points(path):
    """The points of a path; x grows to the right, y up."""
    found = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)
    return np.array([[float(x), -float(y)] for x, y in found])


def chart_of(values, x_label="step", **options):
    """The chart of one line."""
    return line_chart("T", [Series("s", values, "s0")], x_label=x_label, **options)


def numbers(labels):
    return [float(text.replace(",", "")) for _, text in labels]


def check_straight(places, values):
    """Places in the drawing are a straight line of the values, to a twentieth of a pixel."""
    line = np.polyfit(values, places, 1)
    np.testing.assert_allclose(places, np.polyval(line, values), atol=0.06)
    return line


def test_a_line_goes_through_its_points():
    x, y = np.arange(1.0, 41.0), np.linspace(0, 8, 40) ** 2
    drawing = chart_of(list(zip(x, y, strict=True))).drawing
    drawn = points(drawing.lines[0].path)
    across, up = check_straight(drawn[:, 0], x), check_straight(drawn[:, 1], y)
    assert numbers(drawing.up) == [0, 20, 40, 60, 80]
    for line, labels, sign in ((across, drawing.across, 1), (up, drawing.up, -1)):
        places = [sign * place for place, _ in labels]
        assert places == pytest.approx(np.polyval(line, numbers(labels)), abs=0.1)


def test_powers_of_ten_are_even_steps_on_a_logarithmic_axis():
    values = [(float(n), 10.0**n) for n in range(-3, 4)]
    chart = chart_of(values, logarithmic_from=50)
    assert chart.unit == "logarithmic"
    check_straight(points(chart.drawing.lines[0].path)[:, 1], np.arange(7))
    up = chart.drawing.up
    check_straight([place for place, _ in up], np.log10(numbers(up)))
    assert len(up) >= 3
    assert chart_of(values[3:5], logarithmic_from=50).unit == ""


@pytest.mark.parametrize(
    ("low", "high"), [(1.0, 1.1), (0.9, 60.0), (3.0, 4e5), (1e-90, 1e90), (220.0, 440.0)]
)
def test_a_logarithmic_axis_has_a_few_numbers_between_its_ends(low, high):
    up = chart_of([(1, low), (2, high)], logarithmic_from=1.0).drawing.up
    assert 2 <= len(up) <= 7
    assert all(low <= value <= high for value in numbers(up))


def test_ranks_are_shown_by_powers_of_two():
    chart = chart_of([(2.0**n, 1.0) for n in range(5)], x_label="ranks", x_logarithmic=True)
    check_straight(points(chart.drawing.lines[0].path)[:, 0], np.arange(5))
    assert numbers(chart.drawing.across) == [1, 2, 4, 8, 16]
    assert chart_of([(4, 1.0)], x_logarithmic=True).drawing.across[0][1] == "4"


def test_epochs_have_whole_numbers_alone():
    chart = chart_of([(1, 1.0), (2, 3.0), (3, 2.0)], x_label="epoch")
    assert numbers(chart.drawing.across) == [1, 2, 3]


@pytest.mark.parametrize(("zero", "least"), [(True, 0), (False, 97)])
def test_zero_is_on_the_axis_of_times(zero, least):
    assert numbers(chart_of([(1, 97.0), (2, 98.0)], zero=zero).drawing.up)[0] == least


def test_many_points_are_drawn_as_few_with_a_band():
    chart = chart_of(list(enumerate(np.random.default_rng(1).random(5000))))
    [line] = chart.drawing.lines
    assert len(points(line.path)) == 200
    band = points(line.band)
    assert len(np.unique(band[:, 0])) == 200 and len(np.unique(band, axis=0)) >= 399
    assert len(chart.rows) <= 24 and len(chart.drawing.strips) <= 100 and not line.dots


def test_bins_are_medians_of_neighbours_with_their_ends():
    values = np.random.default_rng(1).random(1000)
    values[7] = np.nan
    bins = thinned(list(enumerate(values)), most=100)
    kept = np.delete(values, 7)
    assert len(bins) == 100 and sum(bin_.of for bin_ in bins) == 999
    for i, bin_ in enumerate(bins):
        part = kept[10 * i : 10 * i + 10]
        assert bin_.median == pytest.approx(np.median(part), rel=1e-12)
        assert (bin_.least, bin_.largest) == (part.min(), part.max())
    assert [bin_.x for bin_ in bins] == sorted(bin_.x for bin_ in bins)


def test_a_band_of_its_own_goes_from_end_to_end():
    series = Series("s", [(1, 2.0), (2, 2.0)], "s0", band=[(1.0, 3.0), (0.0, 4.0)])
    [line] = line_chart("T", [series], x_label="step").drawing.lines
    first, last, above_last, above_first = points(line.band)[:, 1]
    unit = (above_first - first) / 2
    assert (first - last, above_last - above_first) == pytest.approx((unit, unit), abs=0.2)


def test_strips_that_say_their_values_cover_the_chart_without_a_gap():
    drawing = chart_of([(1, 1.0), (2, 2.0), (9, 3.0)], x_label="epoch").drawing
    begins, widths, said = zip(*drawing.strips, strict=True)
    ends = np.add(begins, widths)
    assert list(begins[1:]) == pytest.approx(list(ends[:-1]))
    line = points(drawing.lines[0].path)
    assert (begins[0], ends[-1]) == pytest.approx((line[0, 0], line[-1, 0]))
    assert said[2] == "epoch 9\ns 3"


def test_what_is_not_finite_is_left_out_and_said():
    values = [(1, float("nan")), (2, 1.0), (3, float("inf")), (4, 2.0)]
    chart = chart_of(values)
    assert len(chart.rows) == 2
    assert chart.note == "2 values not finite and not drawn."
    assert chart_of(values[:1]) is None


@given(
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=9),
    st.booleans(),
    st.sampled_from([1.0, 50.0, math.inf]),
    st.booleans(),
)
@settings(deadline=None)
def test_any_values_make_a_chart_within_its_area(values, zero, logarithmic_from, x_logarithmic):
    chart = chart_of(
        list(enumerate(values, 1)),
        zero=zero,
        logarithmic_from=logarithmic_from,
        x_logarithmic=x_logarithmic,
    )
    assert (chart is None) == (not np.isfinite(values).any())
    if chart is not None:
        right, up = points(chart.drawing.lines[0].path).T
        assert right.min() >= 0 and right.max() <= 312.1
        assert up.min() >= -146.1 and up.max() <= -7.9
        assert chart.drawing.across and 1 <= len(chart.drawing.up) <= 8


def test_a_series_that_is_missing_at_a_place_has_a_dash_there():
    series = [Series("a", [(1, 1.0), (2, 2.0)], "s0"), Series("b", [(2, 5.0)], "s1", dashed=True)]
    chart = line_chart("T", series, x_label="epoch")
    assert chart.rows == (("1", "1", "–"), ("2", "2", "5"))
    assert [line.dots.count("M") for line in chart.drawing.lines] == [2, 1]
    assert [line.classes for line in chart.drawing.lines] == ["s0", "s1 dashed"]
    assert chart.legend == (("s0", "a"), ("s1 dashed", "b"))


def test_marks_are_where_the_run_was_restarted():
    chart = chart_of([(n, 1.0 * n) for n in range(1, 12)], marks=(6, 99))
    line = points(chart.drawing.lines[0].path)
    assert chart.drawing.marks == pytest.approx((line[5, 0],), abs=0.06)
    assert ("mark", "restart") in chart.legend


def test_a_bar_s_parts_are_as_long_as_their_times():
    values = [
        ("rank 0", {"input": 0.010, "compute": 0.030}),
        ("rank 1", {"input": 0.030, "compute": 0.020}),
    ]
    names = {"input": "A", "compute": "B", "other": "never there"}
    chart = bar_chart("T", values, names, words=duration)
    assert [bar.parts for bar in chart.bars] == [
        (("input", pytest.approx(20), "A: 10 ms"), ("compute", pytest.approx(60), "B: 30 ms")),
        (("input", pytest.approx(60), "A: 30 ms"), ("compute", pytest.approx(40), "B: 20 ms")),
    ]
    assert chart.legend == (("input", "A"), ("compute", "B"))
    assert chart.rows[1] == ("rank 1", "30 ms", "20 ms", "50 ms")
    assert [(bar.label, bar.value) for bar in chart.bars] == [
        ("rank 0", "40 ms"),
        ("rank 1", "50 ms"),
    ]


@pytest.mark.parametrize("values", [[], [("x", {"wait": 0.0})]])
def test_nothing_to_show_is_no_bar(values):
    assert bar_chart("T", values, {"wait": "A"}, words=number) is None
