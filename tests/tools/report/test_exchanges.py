"""What a step exchanges in the report, from the file that an explanation is written to."""

import json

import pytest
from tools.report.logs import start_line, step_line, write_rank
from tools.report.test_report_page import page_of

from tfdp.tools.report.log_directory import read_run
from tfdp.tools.report.log_reader import LogError

AMOUNT = {"operations": 189, "products": 5}
GROUP = {"amount": AMOUNT, "types": {"MatMul": 5, "Mul": 184}}

EXPLANATION = {
    "format": 1,
    "summary": ["A step on 3 replicas has 1 collective.", "<b>1 operation</b> is whole."],
    "replicas": 3,
    "total": AMOUNT,
    "collectives": [
        {
            "number": 1,
            "kind": "sum",
            "tensors": 6,
            "size_bytes": 9648,
            "size": "9.65 kB",
            "bytes_sent": 12864,
            "largest": "gradient_tape/dense/MatMul, float32[64, 32]",
            "within": "loop",
            "needs": [],
            "asked_by": "Square at <train.py>:19, in step",
        }
    ],
    "whole": [
        {
            "operation": "Unique",
            "line": "train.py:20, in step",
            "reason": "it has no rule",
            "times": 2,
            "tensors": 0,
            "size_bytes": 0,
            "size": "0 B",
        }
    ],
    "share": GROUP,
    "everywhere": GROUP,
    "gathered": GROUP,
}


def directory_with(directory, values):
    write_rank(directory, [start_line(), step_line(1)])
    (directory / "explain.json").write_text(
        values if isinstance(values, str) else json.dumps(values)
    )
    return directory


def test_an_explanation_is_a_part_of_the_page(tmp_path):
    page = page_of(directory_with(tmp_path, EXPLANATION))
    for text in (
        "What a step exchanges",
        "A step on 3 replicas has 1 collective. <b>1 operation</b> is whole.",
        "sum, 6 tensors in each round of a loop 9.65 kB 12.9 kB –",
        "gradient_tape/dense/MatMul, float32[64, 32] Square at <train.py>:19, in step",
        "Unique train.py:20, in step it has no rule 2 nothing more",
        "each replica on its shard of the batch 189 5",
    ):
        assert text in page.words, text


def test_without_one_the_page_has_no_such_part(tmp_path):
    assert (
        "What a step exchanges"
        not in page_of(write_rank(tmp_path, [start_line(), step_line(1)])).words
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("{", "explain.json is damaged and left out: it is not a JSON object."),
        ({"collectives": [{}]}, "explain.json is left out: it is not what `explain` writes."),
        ({"share": [1]}, "explain.json is left out"),
        ({"summary": 3}, "explain.json is left out"),
        ({"whole": None}, "explain.json is left out"),
    ],
)
def test_what_is_no_explanation_is_left_out_with_a_note(tmp_path, changed, said):
    values = changed if isinstance(changed, str) else EXPLANATION | changed
    page = page_of(directory_with(tmp_path, values))
    assert said in page.words and "Computed locally" not in page.words


def test_one_of_a_newer_format_is_refused(tmp_path):
    with pytest.raises(LogError, match=r"explain\.json must be of format 1, .* but is of format 2"):
        read_run(directory_with(tmp_path, EXPLANATION | {"format": 2}))
