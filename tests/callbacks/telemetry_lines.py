"""The lines that `Telemetry` has written, of which each has the fields of its class alone."""

import dataclasses
import json

from tfdp.base.log_lines import KINDS


def lines(folder, kind="step", rank=0):
    """The lines of a kind, in their order."""
    found = [json.loads(line) for line in (folder / f"rank{rank}.jsonl").read_text().splitlines()]
    for line in found:
        known = {field.name for field in dataclasses.fields(KINDS[line["kind"]])}
        assert line.keys() - {"kind"} <= known, line
    return [line for line in found if line["kind"] == kind]
