"""One stage of `tfdp check-gpu` in this process; prints one line of JSON.

    python -m tfdp.tools.check_gpu.worker parts --device GPU --gpus 1 --parts 3

What it is at goes to standard error, where it can be read if the process ends without an answer.
"""

import argparse
import dataclasses
import json

from tfdp.tools.check_gpu import nccl, profile, replica_checks
from tfdp.tools.check_gpu.stages import StageFinding


def answer(stage: str, device: str, gpus: int, parts: int) -> StageFinding:
    """Returns the answer of a stage.

    Args:
      stage: Its name; not "speed" or "processes", which have several processes.
      device: "GPU" or "CPU".
      gpus: The number of GPUs.
      parts: The number of replicas on parts of one GPU.
    """
    # Replicas on a GPU each, if there are several; else on two parts of one.
    several = max(gpus, 2)
    if stage == "devices":
        return replica_checks.seen(device)
    if stage == "nccl":
        return nccl.with_one_rank(device)
    if stage == "parts":
        return replica_checks.on_parts(device, parts)
    if stage == "gpus":
        return replica_checks.on_gpus(device, gpus)
    if stage == "draws":
        return replica_checks.draws(device, several)
    if stage == "profile":
        return profile.compared(device, several)
    raise ValueError(
        f"`stage` must be one of a single process; received {stage!r}; do `tfdp check-gpu`."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="One stage of `tfdp check-gpu`.")
    parser.add_argument("stage")
    parser.add_argument("--device", choices=("CPU", "GPU"), required=True)
    for name in ("--gpus", "--parts"):
        parser.add_argument(name, type=int, required=True)
    print(json.dumps(dataclasses.asdict(answer(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
