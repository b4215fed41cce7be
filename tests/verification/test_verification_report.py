"""The report is a table of 80 columns that says what parts first."""

from tfdp.verification.verification_report import Difference, Report

LONG = "generator/block_17/attention/multi_head_attention/query/kernel_of_everything"


def test_it_fits_eighty_columns_and_keeps_the_end_of_long_paths():
    found = Difference("gradients", LONG, 12, float("inf"), 1.2e-7)
    agrees = Difference("loss", "loss", 2, 3e-8, 4e-8)
    reason = "it draws from `tf.random`. " * 9
    report = Report(64, 12, (found,), (agrees,), f"`{LONG}`", reason)
    lines = repr(report).splitlines()
    assert max(map(len, lines)) <= 80 + len(LONG) and not report
    assert all(len(line) <= 80 for line in lines if LONG not in line)
    assert any(line.startswith("gradients         12        inf") for line in lines)
    assert any(line.endswith("query/kernel_of_everything") for line in lines)
    assert "in step 12." in repr(report).replace("\n", " ")


def test_a_report_is_true_where_nothing_parts():
    report = Report(2, 3, (), (), "", "")
    assert report and report.check() is report
    assert repr(report).startswith("On 2 replicas the program trains as on one device: 3 steps.")
