"""The page as people see it: on a wide screen and on a phone, light and dark."""

import itertools
import json

import pytest
from tools.report.browser import channels, chromium, colours, contrast
from tools.report.logs import MANIFEST, write_run

from tfdp.tools import cli

pytestmark = pytest.mark.slow

PHONE, DESK = 360, 1280
light_and_dark = pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (DESK, "light"),
        (PHONE, "dark"),
        *(
            pytest.param(*pair, marks=pytest.mark.exhaustive)
            for pair in [(DESK, "dark"), (PHONE, "light")]
        ),
    ],
)
BLANK = "<!doctype html><title>blank</title><link rel=icon href='data:,'>"


@pytest.fixture(scope="module")
def browser():
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report with everything in it, and with names that are longer than a phone is wide."""
    base = tmp_path_factory.mktemp("a-directory-with-a-name-" + "that-is-long-" * 8)
    logs = write_run(
        base / "logs",
        late_rank=3,
        loss_scale=True,
        host="rank-0-of-a-host.with.a.fully.qualified.domain.name.that.is.long.example",
    )
    other = write_run(base / "other", ranks=2)
    output = base / "report.html"
    assert cli.main(["report", str(logs), "--compare", str(other), "--output", str(output)]) == 0
    return output


@pytest.fixture
def blank(tmp_path):
    path = tmp_path / "blank.html"
    path.write_text(BLANK)
    return path


def check_silent(browser):
    """Nothing in the console, and nothing asked for."""
    assert browser.complaints() == []
    assert browser.requests() == []


def check_not_blank(browser, path, blank, width):
    seen = browser.show(path, width).picture()
    nothing = browser.show(blank, width).picture()
    assert seen.shape == nothing.shape
    assert colours(seen) > 100 > 3 > colours(nothing)
    assert (seen != nothing).any(-1).mean() > 0.02


def check_fits(browser, width):
    assert browser.run("return innerWidth") == width
    assert browser.overflow() <= 0


@light_and_dark
def test_the_page_is_drawn_in_silence(browser, page, blank, width, scheme):
    browser.show(page, width, scheme=scheme)
    browser.open_details()
    check_silent(browser)
    check_not_blank(browser, page, blank, width)


@pytest.mark.parametrize(
    "width", [PHONE, *(pytest.param(w, marks=pytest.mark.exhaustive) for w in (320, 768, DESK))]
)
def test_nothing_is_wider_than_the_window_but_tables_that_scroll_by_themselves(
    browser, page, width
):
    browser.show(page, width)
    check_fits(browser, width)
    browser.open_details()
    check_fits(browser, width)


@light_and_dark
def test_all_text_can_be_read(browser, page, width, scheme):
    browser.show(page, width, scheme=scheme)
    browser.open_details()
    texts = browser.texts()
    assert len(texts) > 300
    faint = [text for text, ink, ground, _ in texts if contrast(ink, ground) < 4.5]
    small = [text for text, _, _, size in texts if size < 12]
    assert faint == [] and small == []


def test_the_page_is_dark_where_the_reader_asks_for_it(browser, page):
    light = browser.show(page, DESK).picture().mean()
    dark = browser.show(page, DESK, scheme="dark").picture().mean()
    assert light > 200 > 60 > dark


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_charts_fill_their_place_and_lines_and_bars_are_seen(browser, page, width):
    browser.show(page, width)
    boxes = browser.run(
        "return [...document.querySelectorAll('.chart svg')].map(e => "
        "[e.getBoundingClientRect().width, e.getBoundingClientRect().height])"
    )
    assert len(boxes) >= 9
    assert all(wide > 200 and high > 100 for wide, high in boxes)
    bars = browser.run(
        "return [...document.querySelectorAll('.bar')].map(e => [e.getBoundingClientRect().width, "
        "[...e.children].map(c => c.getBoundingClientRect().width).reduce((a, b) => a + b)])"
    )
    assert len(bars) >= 9
    assert all(0 < long <= wide + 0.1 and wide > 200 for wide, long in bars)
    ground = browser.run(
        "return getComputedStyle(document.querySelector('.chart')).backgroundColor"
    )
    for what, ink in ((".chart .line", "stroke"), (".bar i", "backgroundColor")):
        inks = browser.run(
            f"return [...document.querySelectorAll('{what}')].map(e => getComputedStyle(e).{ink})"
        )
        assert len(inks) >= 9
        assert all(contrast(channels(one), channels(ground)) > 3 for one in inks), inks


def test_labels_of_a_chart_do_not_lie_on_each_other(browser, page):
    for width in (PHONE, DESK):
        browser.show(page, width)
        drawings = browser.run(
            "return [...document.querySelectorAll('.chart svg')].map(e => "
            "[...e.querySelectorAll('text')].map(c => c.getBoundingClientRect())"
            ".map(b => [b.left, b.right, b.top, b.bottom]))"
        )
        assert len(drawings) >= 9 and all(len(labels) >= 4 for labels in drawings)
        for labels in drawings:
            for one, other in itertools.combinations(labels, 2):
                apart = max(other[0] - one[1], one[0] - other[1], 0)
                above = max(other[2] - one[3], one[2] - other[3], -2)  # letters leave room
                assert apart > 2 or above > -2, (width, labels)


def test_the_pointer_is_told_the_values(browser, page):
    """What is under the middle of each drawing says something, and only strips change."""
    browser.show(page, DESK, height=6000)
    said = browser.run(
        "return [...document.querySelectorAll('.chart svg')].map(e => e.getBoundingClientRect())"
        ".map(b => document.elementsFromPoint(b.left + b.width / 2, b.top + b.height / 2))"
        ".map(es => es.map(e => e.closest('.says')).filter(Boolean).map(e => e.textContent)[0])"
    )
    assert sum(text is not None and text.startswith(("step ", "epoch ")) for text in said) >= 9


@pytest.mark.parametrize(
    "content",
    [
        "<script>console.error('deliberate')</script>",
        "<script>throw new Error('deliberate')</script>",
        "<img src='http://127.0.0.1:9/picture.png'>",
        "<link rel=stylesheet href='missing.css'>",
    ],
)
def test_a_page_that_complains_or_asks_for_something_is_found(browser, tmp_path, content):
    path = tmp_path / "loud.html"
    path.write_text(BLANK + "<p>text</p>" + content)
    browser.show(path, DESK)
    with pytest.raises(AssertionError):
        check_silent(browser)


def test_the_blank_page_is_silent_and_found_to_be_blank(browser, blank):
    browser.show(blank, DESK)
    check_silent(browser)
    with pytest.raises(AssertionError):
        check_not_blank(browser, blank, blank, DESK)


def test_a_page_that_is_too_wide_is_found(browser, tmp_path):
    path = tmp_path / "wide.html"
    path.write_text(BLANK + "<p style='width: 400px'>text</p>")
    browser.show(path, PHONE)
    with pytest.raises(AssertionError):
        check_fits(browser, PHONE)


def test_a_script_in_the_logs_does_not_run(browser, tmp_path):
    evil = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
    logs = write_run(tmp_path / "logs", ranks=2, epochs=1, host=evil, topology=evil)
    model = {**MANIFEST["model"], "name": evil}
    (logs / "manifest.json").write_text(json.dumps(MANIFEST | {"model": model}))
    assert cli.main(["report", str(logs)]) == 0
    browser.show(logs / "report.html", DESK)
    check_silent(browser)
    assert browser.driver.title == f"{evil} – tfdp report"
