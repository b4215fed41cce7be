"""One rank of the demo's second run.

    python -m tfdp.tools.demo.demo_rank FOLDER

:mod:`tfdp.tools.demo.demo_processes` leaves the options in FOLDER, and reads the files that rank 0
leaves.
"""

import hashlib
import pathlib
import pickle
import sys

import tfdp
from tfdp.tools.demo.demo_options import DemoOptions
from tfdp.tools.demo.demo_processes import OPTIONS, RESULT, STEPS
from tfdp.tools.demo.image_sets import load
from tfdp.tools.demo.train import train


def run(folder: pathlib.Path) -> None:
    """Trains with all other ranks; rank 0 leaves a byte per step, and the result, in `folder`.

    Raises:
      RankMismatchError: The ranks do not end with the same weights, bit for bit.
    """
    options: DemoOptions = pickle.loads((folder / OPTIONS).read_bytes())
    strategy = tfdp.DataParallelStrategy()
    processes = strategy.extended.processes
    first = processes.rank == 0
    with (folder / STEPS).open("ab", buffering=0) as steps:
        result = train(
            load(options.dataset),
            strategy=strategy,
            epochs=options.epochs,
            batch_size=options.batch_size,
            seed=options.seed,
            on_step=(lambda: steps.write(b".")) if first else (lambda: None),
        )
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in result.weights)).hexdigest()
    processes.compare("the trained weights", {"their SHA-256": digest})
    if first:
        (folder / RESULT).write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]))
