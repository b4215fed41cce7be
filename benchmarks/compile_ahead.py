"""The benchmark of steps compiled ahead, for TPUs and GPUs that need not be there."""

import argparse
import contextlib
import dataclasses

from tfdp.base.command_line import add_command, check, option, require, set_environment
from tfdp.strategy.xla import gpu_kinds
from tfdp.tools.bench.bench_models import OF_TOKENS, build_model, input_shape

MODELS = ("mlp", "resnet50", "transformer", "lstm")

# How weights are sharded along a second axis of the mesh: layers in pairs, by columns and by rows.
_COLUMNS, _ROWS = (None, "model"), ("model", None)
_LAYOUT_MAPS = {
    "mlp": {
        r"dense(_2|_4|_6|_8|_10)?/kernel": _COLUMNS,
        r"dense(_2|_4|_6|_8|_10)?/bias": ("model",),
        r"dense_(1|3|5|7|9|11)/kernel": _ROWS,
    },
    "transformer": {
        r"(query|key|value)/kernel": (None, "model", None),
        r"(query|key|value)/bias": ("model", None),
        r"attention_output/kernel": ("model", None, None),
        r"dense_[1357]/kernel": _COLUMNS,
        r"dense_[1357]/bias": ("model",),
        r"dense(_[246])?/kernel": _ROWS,
    },
}

# The GB of a chip's memory, by what a topology's name begins with.
_CHIP_MEMORY = {"v4": 32, "v5e": 16, "v5p": 95, "v6e": 32} | {
    name: kind.memory / 1e9 for name, kind in gpu_kinds.KINDS.items()
}


@dataclasses.dataclass(frozen=True)
class CompileAheadOptions:
    """What is compiled, and for what."""

    models: tuple[str, ...] = option(MODELS, "%(default)s", choices=MODELS)
    topologies: tuple[str, ...] = option(
        ("v5e:2x2", "v5e:2x4", "v6e:2x4"), "kinds of chips, and how many, or h100:8 (%(default)s)"
    )
    examples: int = option(128, "of a chip, in each batch (%(default)s)", at_least=1)
    shard: str | None = option(
        None, "what is cut beside the batch", choices=("optimizer", "parameters")
    )
    model_axis: int = option(
        1, "chips that share each layer, of mlp and transformer (%(default)s)", at_least=1
    )
    layouts: str = option(
        "written",
        "of weights along that axis: as written here, or derived (%(default)s)",
        choices=("written", "auto"),
    )
    dtype_policy: str = option(
        "float32", "Keras' (%(default)s)", choices=("float32", "mixed_bfloat16")
    )

    def __post_init__(self) -> None:
        check(self)
        is_written = self.model_axis > 1 and self.layouts == "written"
        if is_written and not set(self.models) <= set(_LAYOUT_MAPS):
            raise ValueError(
                f"`model_axis` must have layouts of each model, but received {self.models}. Use "
                "--models mlp,transformer, or --layouts auto."
            )


def add_compile_ahead(commands: argparse._SubParsersAction) -> None:
    """Adds `compile-ahead` to the benchmarks."""
    add_command(
        commands,
        "compile-ahead",
        CompileAheadOptions,
        _compile_ahead,
        help="what a step on TPUs or GPUs exchanges and needs, compiled without one",
        description="Has XLA compile the step of model.fit under XLAStrategy for chips that need "
        "not be there, and prints its collectives, what would be a transfer to the host, and its "
        "memory. For TPUs it needs libtpu, and a model takes minutes; for GPUs JAX's plugin and, "
        "where no GPU is, JAX_PLATFORMS=cpu.",
    )


def _compile_ahead(options: CompileAheadOptions, parser: argparse.ArgumentParser) -> int:
    of_gpus = [gpu_kinds.parsed(topology) is not None for topology in options.topologies]
    require(["tensorflow", "jax", *([] if all(of_gpus) else ["libtpu"])], parser)
    set_environment()
    return run(options)


def run(options: CompileAheadOptions) -> int:
    """Compiles each model for each topology, and prints a table.

    Returns:
      The exit code: 0; 1 where a step has a transfer to the host, copies what it writes, or needs
      more than a chip's memory.
    """
    print(
        f"shard={options.shard}, {options.dtype_policy}, {options.examples} examples a chip; "
        + ", ".join(f"{name} {version}" for name, version in _versions().items())
    )
    print()
    print(
        "| model | topology | trace, lower, compile (s) | collectives | MB exchanged "
        "| transfers to the host | memory of a chip (MiB) | copied variables |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    well = True
    for model in options.models:
        for topology in options.topologies:
            row, good = _row(options, model, topology)
            print(row, flush=True)
            well = well and good
    return 0 if well else 1


def _versions() -> dict[str, str]:
    import importlib.metadata

    import tensorflow as tf

    found = {"TensorFlow": tf.__version__}
    for name in ("keras", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _row(options: CompileAheadOptions, name: str, topology: str) -> tuple[str, bool]:
    """Returns a row of the table, and whether all is well there."""
    import keras
    import tensorflow as tf

    import tfdp
    from tfdp.strategy.xla.xla_devices import devices_of

    keras.config.set_dtype_policy(options.dtype_policy)
    mesh = layout_map = None
    chips = len(devices_of(topology))
    places = str(chips)
    if options.model_axis > 1:
        places = f"{chips // options.model_axis} x {options.model_axis}"
        mesh = {"batch": chips // options.model_axis, "model": options.model_axis}
        layout_map = "auto" if options.layouts == "auto" else _LAYOUT_MAPS[name]
    strategy = tfdp.XLAStrategy(topology, shard=options.shard, mesh=mesh, layout_map=layout_map)
    keras.backend.clear_session()  # layers' names begin anew
    with strategy.scope():
        model = build_model(name)
    rows = options.examples * chips
    x = tf.TensorSpec([rows, *input_shape(name)], tf.int32 if name in OF_TOKENS else tf.float32)
    facts = strategy.compile_ahead(model, (x, tf.TensorSpec([rows], tf.int32)))
    memory = _CHIP_MEMORY.get(topology.split(":")[0])
    fits = memory is None or facts.memory_bytes < memory * 1e9
    cells = (
        name,
        f"{topology}, {places} chips",
        ", ".join(f"{facts.seconds[part]:.0f}" for part in ("trace", "lower", "compile")),
        ", ".join(f"{count} {kind}" for kind, count in facts.collectives.items()) or "none",
        f"{facts.bytes_moved / 1e6:.1f}",
        ", ".join(facts.host_transfers) or "none",
        f"{facts.memory_bytes / 2**20:.0f}" + (f" of {memory * 1e9 / 2**20:.0f}" if memory else ""),
        str(facts.weights_copied),
    )
    good = fits and not facts.host_transfers and not facts.weights_copied
    return f"| {' | '.join(cells)} |", good
