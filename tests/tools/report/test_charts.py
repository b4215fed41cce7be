"""Charts and bars: where points lie, what the table says, what is left out."""

import importlib.resources
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdp.base.words import duration, number
from tfdp.tools.report import svg
from tfdp.tools.report.bars import bar_chart
from tfdp.tools.report.charts import thinned
from tfdp.tools.report.lines_and_areas import Series, area_chart, line_chart


def paths(chart, look):
    """The points of the drawing's paths whose style has these words; x grows to the right, y up."""
    root = ElementTree.fromstring(chart.svg)
    styles = {"#" + use.get("href", "")[1:]: use.get("style") for use in root.iter("use")}
    found = []
    for path in root.iter("path"):
        style = path.get("style", "") + (styles.get("#" + path.get("id", "")) or "")
        if look in style:
            points = re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d"))
            found.append(np.array([[float(x), -float(y)] for x, y in points]))
    return found


def labels(chart):
    """The numbers of the two axes: (place, number) pairs of each, as they are drawn."""
    x, y = [], []
    for text in ElementTree.fromstring(chart.svg).iter("text"):
        try:
            value = float(text.text.replace(",", ""))
        except ValueError:
            continue
        place = float(text.get("x")), -float(text.get("y"))
        (y if "text-anchor: end" in text.get("style") else x).append((*place, value))
    return x, y


def strips(chart):
    root = ElementTree.fromstring(chart.svg)
    return [group for group in root.iter("g") if group.get("class") == "says"]


def check_straight(places, values):
    """Places in the drawing are a straight line of the values, to a twentieth of a pixel."""
    line = np.polyfit(values, places, 1)
    np.testing.assert_allclose(places, np.polyval(line, values), atol=0.06)
    return line


def test_a_line_goes_through_its_points():
    x, y = np.arange(1.0, 41.0), np.linspace(0, 8, 40) ** 2
    chart = line_chart("T", [Series("s", list(zip(x, y, strict=True)), "s0")], x_label="step")
    [drawn] = paths(chart, "stroke: var(--s0)")
    across, up = check_straight(drawn[:, 0], x), check_straight(drawn[:, 1], y)
    on_x, on_y = labels(chart)
    assert [value for *_, value in on_y] == [0, 20, 40, 60, 80]
    for place, _, value in on_x:
        assert place == pytest.approx(np.polyval(across, value), abs=0.1)
    heights = np.array([[height, value] for _, height, value in on_y])
    assert np.polyfit(heights[:, 1], heights[:, 0], 1)[0] == pytest.approx(up[0], rel=1e-3)


def test_powers_of_ten_are_even_steps_on_a_logarithmic_axis():
    points = [(float(n), 10.0**n) for n in range(-3, 4)]
    chart = line_chart("T", [Series("s", points, "s0")], x_label="x", may_be_logarithmic=True)
    assert chart.unit == "logarithmic"
    [drawn] = [path for path in paths(chart, "fill: none; stroke: var(--s0)") if len(path) == 7]
    check_straight(drawn[:, 1], np.arange(7))
    _, on_y = labels(chart)
    check_straight([height for _, height, _ in on_y], np.log10([value for *_, value in on_y]))
    assert len(on_y) >= 3
    narrow = line_chart("T", [Series("s", points[3:5], "s0")], x_label="x", may_be_logarithmic=True)
    assert narrow.unit == ""


def test_epochs_have_whole_numbers_alone():
    chart = line_chart("T", [Series("s", [(1, 1.0), (2, 3.0), (3, 2.0)], "s0")], x_label="epoch")
    assert [value for *_, value in labels(chart)[0]] == [1, 2, 3]


def test_zero_is_on_the_axis_of_times():
    points = [(1, 97.0), (2, 98.0)]
    for zero, least in ((True, 0), (False, 97)):
        chart = line_chart("T", [Series("s", points, "s0")], x_label="step", zero=zero)
        assert labels(chart)[1][0][-1] == least


def test_many_points_are_drawn_as_few_with_a_band():
    y = np.random.default_rng(1).random(5000)
    chart = line_chart("T", [Series("s", list(enumerate(y)), "s0")], x_label="step")
    [line] = paths(chart, "fill: none; stroke: var(--s0)")
    assert len(line) == 200
    [band] = paths(chart, "fill: var(--s0); fill-opacity: 0.2")
    assert len(np.unique(band[:, 0])) == 200 and len(np.unique(band, axis=0)) >= 399
    assert len(chart.rows) <= 24 and len(strips(chart)) <= 100


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
    chart = line_chart("T", [series], x_label="step")
    [band] = paths(chart, "fill: var(--s0); fill-opacity: 0.2")
    corners = {(x, y) for x, y in band}
    left, right = (sorted(y for x, y in corners if x == side) for side in np.unique(band[:, 0]))
    unit = left[1] - left[0]
    assert np.diff([right[0], *left, right[1]]) == pytest.approx(
        [unit / 2, unit, unit / 2], abs=0.2
    )


def test_strips_that_say_their_values_cover_the_chart_without_a_gap():
    chart = line_chart("T", [Series("s", [(1, 1.0), (2, 2.0), (9, 3.0)], "s0")], x_label="epoch")
    ends = [path[:, 0] for path in paths(chart, "fill: var(--strip)")]
    assert [end.min() for end in ends[1:]] == [end.max() for end in ends[:-1]]
    [line] = [path for path in paths(chart, "fill: none; stroke: var(--s0)") if len(path) == 3]
    assert (ends[0].min(), ends[-1].max()) == (line[0, 0], line[-1, 0])
    assert strips(chart)[2].findtext("title") == "epoch 9\ns 3"


def test_what_is_not_finite_is_left_out_and_said():
    points = [(1, float("nan")), (2, 1.0), (3, float("inf")), (4, 2.0)]
    chart = line_chart("T", [Series("s", points, "s0")], x_label="step")
    assert len(chart.rows) == 2
    assert chart.note == "2 values not finite and not drawn."
    assert line_chart("T", [Series("s", points[:1], "s0")], x_label="step") is None


@pytest.mark.slow
@settings(max_examples=15)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=9), st.booleans(), st.booleans())
def test_any_values_make_a_chart(values, zero, logarithmic):
    series = [Series("s", list(enumerate(values)), "s0")]
    options = {"zero": zero, "may_be_logarithmic": logarithmic}
    chart = line_chart("T", series, x_label="step", **options)
    assert (chart is None) == (not np.isfinite(values).any())
    if chart is not None:
        assert "nan" not in chart.svg and len(labels(chart)[0]) >= 1


def test_a_series_that_is_missing_at_a_place_has_a_dash_there():
    series = [Series("a", [(1, 1.0), (2, 2.0)], "s0"), Series("b", [(2, 5.0)], "s1")]
    chart = line_chart("T", series, x_label="epoch")
    assert chart.rows == (("1", "1", "–"), ("2", "2", "5"))
    dots = [use.get("style") for use in ElementTree.fromstring(chart.svg).iter("use")]
    assert [sum(f"--s{n}" in style for style in dots) for n in (0, 1)] == [2, 1]


def test_marks_are_where_the_run_was_restarted():
    points = [(n, 1.0 * n) for n in range(1, 12)]
    chart = line_chart("T", [Series("s", points, "s0")], x_label="step", marks=(6, 99))
    [mark] = paths(chart, "stroke: var(--open)")
    [line] = [path for path in paths(chart, "fill: none; stroke: var(--s0)") if len(path) == 11]
    assert set(mark[:, 0]) == {line[5, 0]}
    assert ("mark", "restart") in chart.legend


def test_areas_lie_one_on_the_other():
    values = np.random.default_rng(1).random([30, 3])
    parts = ("input", "compute", "other")
    samples = [(float(i), dict(zip(parts, row, strict=True))) for i, row in enumerate(values)]
    names = dict(zip(parts, "ABC", strict=True))
    chart = area_chart("T", samples, names, x_label="step", unit="ms", words=number)
    below, unit = np.zeros(30), None
    for part, column in zip(parts, values.T, strict=True):
        [area] = paths(chart, f"fill: var(--{part})")
        places = np.unique(area[:, 0])
        assert len(places) == 30
        ends = np.array([[f(area[area[:, 0] == x, 1]) for x in places] for f in (np.min, np.max)])
        if unit is None:
            unit = (ends[1] - ends[0]).sum() / column.sum()
            floor = ends[0].mean()
        np.testing.assert_allclose(ends[0], floor + unit * below, atol=0.3)
        np.testing.assert_allclose(ends[1], floor + unit * (below + column), atol=0.3)
        below = below + column


def test_a_bar_s_parts_are_as_long_as_their_times():
    values = [
        ("rank 0", {"input": 0.010, "compute": 0.030}),
        ("rank 1", {"input": 0.030, "compute": 0.020}),
    ]
    names = {"input": "A", "compute": "B", "other": "never there"}
    bars = bar_chart("T", values, names, unit="ms", words=duration, scale=1e3)
    on_x, _ = labels(bars)
    assert [value for *_, value in on_x] == [0, 10, 20, 30, 40, 50]
    millisecond = (on_x[-1][0] - on_x[0][0]) / 50
    for part, ends in (("input", [(0, 10), (0, 30)]), ("compute", [(10, 40), (30, 50)])):
        drawn = [path[:, 0] for path in paths(bars, f"fill: var(--{part})")]
        for found, expected in zip(drawn, ends, strict=True):
            places = on_x[0][0] + millisecond * np.array(expected)
            np.testing.assert_allclose([found.min(), found.max()], places, atol=0.2)
    assert bars.legend == (("input", "A"), ("compute", "B"))
    assert bars.rows[1] == ("rank 1", "30 ms", "20 ms", "50 ms")
    said = [group.findtext("title") for group in strips(bars)]
    assert said == ["rank 0: A: 10 ms", "rank 0: B: 30 ms", "rank 1: A: 30 ms", "rank 1: B: 20 ms"]


def test_a_bar_s_label_is_on_it_whole_however_long():
    label = "rank 0 on " + "a-host-with-a-long-name." * 6
    bars = bar_chart("T", [(label, {"wait": 1.0})], {"wait": "wait"}, unit="s", words=str)
    texts = [text.text for text in ElementTree.fromstring(bars.svg).iter("text")]
    assert "".join(label.split()) in "".join("".join(texts).split())


def test_every_colour_of_the_drawings_is_the_page_s():
    css = importlib.resources.files("tfdp.tools.report") / "templates" / "page.css"
    named = set(re.findall(r"--([\w-]+):", css.read_text()))
    assert set(svg._INKS) <= named


def test_nothing_to_show_is_no_chart():
    assert bar_chart("T", [], {"wait": "A"}, unit="", words=number) is None
    assert bar_chart("T", [("x", {"wait": 0.0})], {"wait": "A"}, unit="", words=number) is None
    options = {"x_label": "step", "unit": "", "words": number}
    assert area_chart("T", [(1.0, {"input": 1.0})], {"input": "A"}, **options) is None
