"""The cases of `benchmarks equivalence` under tfdp in this process; prints one line of JSON.

python -m benchmarks.versions_worker
"""

import json

from benchmarks.equivalence import BOUND
from benchmarks.equivalence_cases import CASES
from benchmarks.equivalence_worker import measure
from tfdp.base import machine
from tfdp.tools.bench.bench_devices import split

_REPLICAS = 2


def main() -> None:
    """Measures and prints the versions, the number of cases, and the outcomes of unequal cases."""
    devices = split(_REPLICAS, "CPU")
    found = {case: measure(case, devices, ["tfdp"])["tfdp"] for case in CASES}
    unequal = {
        case: outcome
        for case, outcome in found.items()
        if not outcome.get("relative", float("inf")) <= BOUND
    }
    print(json.dumps({"versions": machine.versions(), "cases": len(found), "unequal": unequal}))


if __name__ == "__main__":
    main()
