"""The function `tfdp.write_manifest`, and its descriptions of strategies and models."""

import contextlib
import datetime
import math
import os
import pathlib
import socket
import sys
from typing import Any

from tfdp import cluster
from tfdp.base import determinism, machine
from tfdp.base.atomic_files import replace_text
from tfdp.base.data_fingerprints import fingerprint
from tfdp.callbacks.manifest import process_start
from tfdp.callbacks.manifest.configuration import configuration
from tfdp.callbacks.manifest.strict_json import attempted, plain, text_of

FORMAT = 1


def write_manifest(
    path: str | os.PathLike[str], model: Any = None, data: Any = None
) -> dict[str, Any]:
    """Writes a description of this run to a JSON file, to identify it and to repeat it.

    Any run can do so: with neither a model nor data, no TensorFlow is loaded. In a cluster each
    rank may call this function, and rank 0 writes. The file is replaced at once: a reader sees the
    old one or the new one.

    Args:
      path: The path of the file, in a folder that exists.
      model: A Keras model; None: the entry is null, and the strategy is the one whose scope is
        open.
      data: The data it is trained on: a `tfdp.data.Pipeline`, arrays, a `tf.data.Dataset`.

    Returns:
      The manifest that is written; on other ranks the one that they would write.

      - `format`: 1. `created`: the time, ISO 8601, UTC.
      - `command`: the words, interpreter included; `directory`: where it was started. Values of
        names such as `--api-key` and `wandb.api_key=` become `***`, in addresses and JSON, too.
      - `commit`: `revision` and `modified` (a file that git knows was changed, or git does not know
        the program) of the repository of the program, else of `directory`; null without git.
      - `versions`: of Python, tfdp, TensorFlow, Keras, NumPy, JAX; null: not installed.
      - `environment`: the variables of TensorFlow, Keras, tfdp, CUDA, NCCL, XLA, JAX, OpenMP,
        malloc and
        sizes of launchers that are set; none whose name speaks of a secret.
      - `seeds`: `seed`, the function it was given to (`set_by`), and whether TensorFlow's
        operations are `deterministic`.
      - `data`: its kind, and a fingerprint with what that `covers`; see `Pipeline.identify`.
      - `strategy`: `name`, `replicas`, `devices` and, of tfdp's, what `describe()` returns.
      - `model`: `name`, `class`, `parameters` (trainable numbers), `optimizer` (its configuration),
        `dtype_policy`, `steps_per_execution`, `jit_compile`.
      - `hardware`: of this rank's host: its name (`host`), `cpu`, `cores` that the process may use,
        `memory_bytes`, `gpus` (models).

      Numbers that JSON does not have are the strings "nan", "inf", "-inf". Where a model, optimizer
      or data object fails to describe itself, the entry is a text, "cannot be described: ...".

    Raises:
      FileNotFoundError: The folder is missing.
      OSError: The file cannot be written.
      ClusterError: No strategy is known, and the environment describes an impossible cluster.

    Cost: git is given 5 s at most; up to 64 MiB of each array are read, some 0.2 s.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = write_manifest(os.path.join(folder, "manifest.json"))
    >>> manifest["format"], manifest["model"], sorted(manifest["commit"] or ["modified"])[0]
    (1, None, 'modified')
    """
    strategy = strategy_of(model)
    directory = os.getcwd()
    program = getattr(sys.modules["__main__"], "__file__", None)
    manifest = plain(
        {
            "format": FORMAT,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": process_start.command(sys.orig_argv),
            "directory": directory,
            "commit": process_start.commit(program, directory),
            "versions": machine.versions(),
            "environment": process_start.environment(os.environ),
            "seeds": determinism.seeds(),
            "data": _fingerprint(data),
            "strategy": attempted(described_strategy, strategy),
            "model": attempted(described_model, model),
            "hardware": {
                "host": socket.gethostname(),
                "cpu": machine.cpu_model(),
                "cores": len(machine.cores()),
                "memory_bytes": machine.memory_bytes(),
                "gpus": machine.gpus(),
            },
        }
    )
    if _rank(strategy) == 0:
        replace_text(_checked(pathlib.Path(path)), text_of(manifest) + "\n")
    return manifest


def _rank(strategy: Any) -> int:
    rank = attempted(getattr, strategy, "rank", None)
    return rank if isinstance(rank, int) else cluster.rank_in_environment()


def _fingerprint(data: Any) -> Any:
    found = attempted(fingerprint, data)
    if isinstance(found, str):
        return {"kind": type(data).__name__, "covers": f"its class; it {found}"}
    return found


def _checked(path: pathlib.Path) -> pathlib.Path:
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"`path` must be in a folder that exists; received {str(path)!r}. Do "
            f"`mkdir -p {path.parent}`."
        )
    return path


def strategy_of(model: Any = None) -> Any:
    """Returns the model's strategy, or else the one whose scope is open; None if there is none.

    Loads no TensorFlow.
    """
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None:
        return None
    strategy = None
    with contextlib.suppress(Exception):  # of a model that cannot be asked
        strategy = getattr(model, "distribute_strategy", None)
    strategy = strategy or tensorflow.distribute.get_strategy()
    # TensorFlow's default where no scope is open; its class has no public name.
    is_default = type(strategy).__name__ == "_DefaultDistributionStrategy"
    return None if is_default else strategy


def described_strategy(strategy: Any) -> dict[str, Any] | None:
    """Returns the strategy's own `describe()`, or else its replicas and devices.

    >>> described_strategy(None) is None
    True
    """
    if strategy is None:
        return None
    name = type(strategy).__name__
    if callable(getattr(strategy, "describe", None)):
        return {"name": name, **strategy.describe()}
    devices = getattr(strategy.extended, "worker_devices", ())
    return {
        "name": name,
        "replicas": int(strategy.num_replicas_in_sync),
        "devices": [machine.short_device_name(device) for device in devices],
    }


def described_model(model: Any) -> dict[str, Any] | None:
    """Returns the name, size and optimizer of a Keras model, and how it is compiled.

    Parameters are counted if the model is built. Where the model fails to answer, a text says so.

    >>> described_model(None) is None
    True
    """
    if model is None:
        return None
    built = attempted(getattr, model, "built", False) is True
    return {
        "name": attempted(lambda: model.name),
        "class": type(model).__name__,
        "parameters": attempted(lambda: _count(model.trainable_variables)) if built else None,
        "parameters_not_trained": (
            attempted(lambda: _count(model.non_trainable_variables)) if built else None
        ),
        "optimizer": attempted(lambda: _optimizer(getattr(model, "optimizer", None))),
        "dtype_policy": attempted(
            lambda: getattr(getattr(model, "dtype_policy", None), "name", None)
        ),
        "steps_per_execution": attempted(getattr, model, "steps_per_execution", None),
        "jit_compile": attempted(getattr, model, "jit_compile", None),
    }


def _optimizer(optimizer: Any) -> dict[str, Any] | None:
    if optimizer is None:
        return None
    return {"class": type(optimizer).__name__, **configuration(optimizer)}


def _count(variables: Any) -> int:
    return sum(math.prod(int(size) for size in variable.shape) for variable in variables)
