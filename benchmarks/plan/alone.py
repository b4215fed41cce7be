"""The models of `benchmarks plan` on one rank alone, as `tfdp plan` times them; prints JSON."""

import dataclasses
import json

from benchmarks.plan import models
from tfdp.tools.plan import measuring


def main() -> None:
    """Times each model's passes, with the threads that the environment sets, and prints them."""
    found = {
        name: dataclasses.asdict(measuring.workload(models.build(name), models.BATCH, None))
        for name in models.NAMES
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
