"""The page: whole, closed, escaped, and asking nobody for anything."""

import html.parser
import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st
from tools.report.logs import HOUR, MANIFEST, line, start_line, step_line, write_rank, write_run

from tfdp.tools.report.log_directory import read_run
from tfdp.tools.report.log_reader import LogError
from tfdp.tools.report.report_page import render

EVIL = "<script>alert('x')</script>\"'&`</style>"
VOID = {"meta", "link", "br", "hr", "img", "input", "path", "rect"}


class Page(html.parser.HTMLParser):
    """Reads a page as a browser does: its tags, text and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text, self.ids = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def page_of(directory, *compared):
    text = render(read_run(directory), [read_run(other) for other in compared], now=HOUR + 999)
    page = Page(text)
    assert page.open == []
    assert text.startswith("<!doctype html>")
    return page


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    directory = tmp_path_factory.mktemp("late")
    return page_of(write_run(directory, late_rank=3, late_seconds=0.05, loss_scale=True))


def test_the_page_has_every_part(late):
    for text in (
        "fashion_cnn",
        "examples per second",
        "Loss by step",
        "A step on each rank",
        "A step over time",
        "Straggler: rank 3 on node-1.",
        "By epoch, as the callback named it",
        "Gradient norm",
        "Trust ratios",
        "Loss scale",
        "Skipped steps so far",
        "Bytes sent",
        "fraction of a step that is compute",
        "python train.py --epochs 3 --name 'two words'",
        "4f0c1d2e9a7b",
        "Threshold: 5% of a step, and last in 38% of at least 5 samples.",
    ):
        assert text in late.words


def test_the_page_asks_nobody_for_anything(late):
    assert not {"script", "iframe", "img", "object", "embed", "base", "form"} & set(late.tags)
    references = [
        value
        for _, name, value in late.attributes
        if name in ("href", "src", "srcset", "action", "xlink:href", "background")
    ]
    assert [name for name in references if not name.startswith("#")] == ["data:,"]
    style = "".join(late.text[:40])
    assert "@import" not in style and "url(" not in style
    policy = [v for _, name, v in late.attributes if name == "content" and "default-src" in v]
    assert policy and policy[0].startswith("default-src 'none'")


def test_who_does_not_see_the_charts_is_told_what_they_show(late):
    labels = [v for t, n, v in late.attributes if t == "div" and n == "aria-label"]
    assert any(re.match(r"Loss by step: 180 points, loss from 2\.\d+ to", v) for v in labels)
    assert any(v.startswith("A step on each rank, 4 bars; the longest, rank") for v in labels)
    assert len(late.ids) == len(set(late.ids))
    named = [v for _, n, v in late.attributes if n == "aria-labelledby"]
    assert set(named) <= set(late.ids)
    assert ("html", "lang", "en") in late.attributes
    assert ("meta", "content", "width=device-width, initial-scale=1") in late.attributes


def test_every_colour_of_the_charts_is_one_of_the_page_s(late):
    classes = {v for tag, name, v in late.attributes if tag in ("g", "i") and name == "class"}
    used = {word for value in classes for word in value.split()} - {"dashed", "says"}
    assert {"s0", "s1", "compute", "wait"} <= used
    colours = set(re.findall(r"\.(\w+)(?:, \.\w+)* \{ --c:", "".join(late.text)))
    colours |= set(re.findall(r", \.(\w+) \{ --c:", "".join(late.text)))
    assert used <= colours


@pytest.mark.slow
def test_whatever_stands_in_the_logs_is_only_text(tmp_path):
    clean, evil = tmp_path / "clean", tmp_path / f"evil {EVIL.replace('/', '')}"
    for directory, word in ((clean, "w" * len(EVIL)), (evil, EVIL)):
        start = {"host": word, "topology": word, "optimizer": word, "devices": [word]}
        logs = {"loss": 1.0, word: 2.0}
        for rank in (0, 1):
            lines = [start_line(rank, 2, **start)]
            lines += [
                step_line(n, loss=1.0, input_seconds=0.2, compute_seconds=0.1, **wait)
                for n in (1, 2, 3)
                for wait in [{"first_bucket_wait_seconds": 0.2 * rank}]
            ]
            lines += [line(kind="epoch", time=HOUR, epoch=0, step=3, logs=logs)]
            late = {"rank": 0, "host": word, "late_seconds": 0.2, "samples": 2}
            lines += [line(kind="straggler", time=HOUR, epoch=0, **late)]
            write_rank(directory, lines, rank)
        manifest = MANIFEST | {"model": {"name": word, word: word}, word: {word: [word]}}
        manifest |= {"command": [word], "environment": {"A": word}}
        (directory / "manifest.json").write_text(json.dumps(manifest))
    harmless, escaped = page_of(clean), page_of(evil, clean)
    assert "script" not in escaped.tags
    assert EVIL in "".join(escaped.text)
    # The same elements, but for the scaling's, which the second one has besides.
    assert page_of(evil).tags == harmless.tags


def test_all_stragglers_are_on_the_page(tmp_path):
    for rank in range(6):
        wait = 0.02 if rank < 4 else 0.22 - 0.01 * rank
        lines = [step_line(n, first_bucket_wait_seconds=0.5 - wait) for n in range(1, 9)]
        write_rank(tmp_path, [start_line(rank, 6), *lines], rank)
    page = page_of(tmp_path)
    assert "Stragglers: rank 4 on node-2, rank 5 on node-2. Rank 4 on node-2" in page.words
    assert "Rank 5 on node-2 comes last in 0 of 7 samples" in page.words


@pytest.mark.slow
def test_a_comparison_shows_each_run_and_its_efficiency(tmp_path):
    runs = [write_run(tmp_path / f"on-{n}", ranks=n, batch=64 * n) for n in (1, 2)]
    page = page_of(runs[1], runs[0])
    assert "weak scaling" in page.words
    assert "2 replicas" in page.words and "4 replicas" in page.words
    assert "One run alone" not in page.words


def test_runs_whose_examples_are_not_counted_cannot_be_compared(tmp_path):
    logs = [tmp_path / "one", tmp_path / "other"]
    for directory in logs:
        write_rank(directory, [start_line(), *(step_line(n, examples=None) for n in (1, 2, 3))])
    assert "of these 2 runs, 0 did." in page_of(*logs).words


@pytest.mark.slow
def test_a_run_that_was_cut_off_says_so(tmp_path):
    page = page_of(write_run(tmp_path, ranks=2, epochs=1, ended=False))
    assert "no end The logs have no end: the run was cut off, or goes on." in page.words


def test_notes_on_the_files_are_on_the_page(tmp_path):
    lines = [start_line(), step_line(1), start_line(), step_line(2), '{"kind"']
    page = page_of(write_rank(tmp_path, lines))
    assert "The run was started 2 times; it went on at step 2." in page.words
    assert "rank0.jsonl was cut off while line 5 was written; left out." in page.words
    assert "There is no manifest.json" in page.words


def test_the_smallest_log_makes_a_page(tmp_path):
    page = page_of(write_rank(tmp_path, [start_line(), step_line(1)]))
    assert "No loss or metric is logged so far." in page.words
    assert "This run has no others, so that they are shown." in page.words


@pytest.mark.slow
def test_a_long_run_s_page_stays_small(tmp_path):
    lines = [start_line(0, 1)]
    parts = {"compute_seconds": 0.2, "input_seconds": 0.1, "gradient_norm": 2.0}
    lines += [step_line(n, loss=1 / n, **parts) for n in range(1, 20_001)]
    text = render(read_run(write_rank(tmp_path, lines)), [], now=HOUR)
    assert len(text) < 300_000


PARTS = {
    "input_seconds": 0.1,
    "compute_seconds": 0.2,
    "communication_seconds": 0.1,
    "first_bucket_wait_seconds": 0.01,
    "meeting_seconds": 0.01,
    "bytes_sent": 100,
    "skipped_steps": 0,
}
NUMBERS = st.one_of(
    st.floats(),
    st.floats(0, 10),
    st.integers(-(10**30), 10**30),
    st.integers(0, 100),
    st.sampled_from([None, "nan", "inf", "-inf", "x", True, [], {}]),
)
STEP_KEYS = [*json.loads(step_line(1, **PARTS)), "loss", "loss_scale", "gradient_norm"]
STEPS = st.dictionaries(st.sampled_from(STEP_KEYS[3:]), NUMBERS)


@pytest.mark.slow
@hypothesis.settings(max_examples=20)
@hypothesis.given(
    steps=st.lists(STEPS, min_size=1, max_size=5),
    logs=st.dictionaries(st.text(max_size=5), NUMBERS, max_size=3),
    ratios=st.dictionaries(st.sampled_from(["min", "median", "max"]), NUMBERS),
)
def test_every_log_makes_a_page_or_is_refused(tmp_path_factory, steps, logs, ratios):
    directory = tmp_path_factory.mktemp("any")
    lines = [start_line()]
    lines += [step_line(n, **changed) for n, changed in enumerate(steps, 1)]
    lines += [step_line(len(steps) + 1, trust_ratios=ratios)]
    lines += [line(kind="epoch", time=HOUR, epoch=0, step=1, logs=logs)]
    write_rank(directory, lines)
    try:
        page_of(directory)
    except LogError as error:
        assert "rank0.jsonl, line" in str(error)
