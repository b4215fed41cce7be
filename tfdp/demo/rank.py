"""One rank of the demo's second run.

    python -m tfdp.demo.rank OPTIONS FOLDER

:mod:`tfdp.demo.processes` starts it, and reads what rank 0 leaves in FOLDER.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import sys
from collections.abc import Sequence

import numpy as np

import tfdp
from tfdp.demo.demo_command import DemoOptions
from tfdp.demo.images import load
from tfdp.demo.processes import save_run, step_signs, told_options
from tfdp.demo.train import train


def run(options: DemoOptions, folder: pathlib.Path) -> None:
    """Trains with all other ranks; rank 0 leaves the result in `folder`.

    Raises:
        RankMismatchError: the ranks do not end with the same weights, bit for bit.
    """
    strategy = tfdp.DataParallelStrategy()
    processes = strategy.extended.processes
    first = processes.rank == 0
    with step_signs(folder) if first else contextlib.nullcontext(lambda: None) as on_step:
        result = train(
            load(options.dataset),
            strategy=strategy,
            epochs=options.epochs,
            batch_size=options.batch_size,
            seed=options.seed,
            on_step=on_step,
        )
    processes.compare("the trained weights", {"their SHA-256": _digest(result.weights)})
    if first:
        save_run(result, folder)


def _digest(weights: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    run(told_options(sys.argv[1]), pathlib.Path(sys.argv[2]))
