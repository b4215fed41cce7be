"""The stages of the check, in their order: what each asks, and how long it may take."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Stage:
    """A question about this machine's GPUs, answered by processes of its own.

    Args:
      name: Its name in `--stages` and in the file.
      asks: What it finds out, for `--help` and the documentation.
      limit_seconds: The time after which its processes are killed.
      gpus: The number of GPUs that it needs.
    """

    name: str
    asks: str
    limit_seconds: float
    gpus: int = 1


# Twenty-four minutes together.
STAGES = (
    Stage("devices", "TensorFlow sees the GPUs, and each multiplies right", 60, gpus=0),
    Stage("nccl", "NCCL starts, with one rank, for each type of number that is given to it", 60),
    Stage("parts", "several replicas on parts of one GPU train like the GPU", 300),
    Stage("draws", "replicas draw what one device draws", 90),
    Stage("gpus", "replicas on a GPU each add up right by NCCL, and train like one", 240, gpus=2),
    Stage("processes", "so do processes with a GPU each, in one all-reduce", 90, gpus=2),
    Stage("speed", "a step beside MirroredStrategy's, and DDP's where PyTorch is installed", 270),
    Stage("profile", "copies between memories in a step, beside one device's", 90),
    Stage("xla", "XLAStrategy trains like the CPU; a step beside Keras on JAX's", 240, gpus=0),
)

NAMES = tuple(stage.name for stage in STAGES)
