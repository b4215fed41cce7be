"""The checks of a strategy's options that must go together."""

from typing import Any

from tfdp.base.sharding import SHARDS
from tfdp.compression import Cast, Compression, UpdateCompression
from tfdp.synchronization import Synchronization

#: Whose statistics plain BatchNormalization has.
BATCH_NORMALIZATIONS = ("whole_batch", "per_replica")


def check_synchronization(
    synchronization: Any, compression: Compression | UpdateCompression | None
) -> None:
    """Checks that a synchronization is one, and goes with a compression.

    Raises:
      TypeError: It is none.
      ValueError: They do not go together.
    """
    if not (synchronization is None or isinstance(synchronization, Synchronization)):
        raise TypeError(
            "`synchronization` must be an object of `tfdp.synchronization`, but received "
            f"{synchronization!r}. Use synchronization=tfdp.synchronization.LocalSGD(every=10), or "
            "leave it out."
        )
    if synchronization is None or compression is None:
        return
    # To make the optimizer would run an operation, before the processes have joined.
    if not synchronization.has_outer_optimizer:
        raise ValueError(
            f"{synchronization.no_compression} Received {synchronization!r} and {compression!r}."
        )
    if isinstance(compression, UpdateCompression) and compression.has_momentum:
        raise ValueError(
            "The momentum of outer gradients must be the outer optimizer's, but received "
            f"{synchronization!r} and {compression!r}, which has it, too. Use "
            "tfdp.compression.ErrorFeedback around the compression inside of it."
        )


def check_no_mesh(mesh: Any, layout_map: Any) -> None:
    """Checks that no mesh is asked of a strategy whose replicas have all of each layer.

    Raises:
      TypeError: One is.
    """
    if mesh is None and layout_map is None:
        return
    raise TypeError(
        "A mesh must be that of `tfdp.XLAStrategy`, which shards weights between devices, but "
        f"`tfdp.DataParallelStrategy` received mesh={mesh!r} and layout_map={layout_map!r}. Use "
        "tfdp.XLAStrategy(mesh=..., layout_map=...), or leave both out; "
        'shard="parameters" shards weights between steps.'
    )


def check_batch_normalization(batch_normalization: str) -> None:
    """Checks that the statistics of batch normalization are known ones.

    Raises:
      ValueError: They are not.
    """
    if batch_normalization not in BATCH_NORMALIZATIONS:
        raise ValueError(
            '`batch_normalization` must be "whole_batch" or "per_replica", but received '
            f'{batch_normalization!r}. Leave it out for one device\'s, "whole_batch"; use '
            'batch_normalization="per_replica" for statistics of each replica\'s own examples.'
        )


def check_shard(
    shard: str | None,
    compression: Compression | UpdateCompression | None,
    synchronization: Synchronization | None,
) -> None:
    """Checks that `shard` is known, and goes with a compression and a synchronization.

    Raises:
      ValueError: It is not, or they do not go together.
    """
    if shard is None:
        return
    if shard not in SHARDS:
        raise ValueError(
            f"`shard` must be one of {', '.join(map(repr, SHARDS))}, but received {shard!r}. Use "
            "shard='optimizer', or leave it out."
        )
    if synchronization is not None:
        raise ValueError(
            f"{synchronization.no_shard} Received {shard!r} and {synchronization!r}: leave one of "
            "them out."
        )
    sums_parts = isinstance(compression, UpdateCompression) and compression.sums_parts
    if not (compression is None or isinstance(compression, Cast) or sums_parts):
        raise ValueError(
            "`shard` sums parts of gradients, as they are, cast, or in blocks, but received "
            f"{shard!r} and {compression!r}, which needs whole ones. Use "
            "compression=tfdp.compression.ErrorFeedback(tfdp.compression.Int8()), or "
            'tfdp.compression.Cast("bfloat16"), or leave one out.'
        )


def check_ranks(
    synchronization: Synchronization | None, world_size: int, local_size: int, engine: str
) -> None:
    """Checks that a synchronization that does not wait for all ranks can do without some.

    Args:
      synchronization: The synchronization.
      world_size: The number of ranks.
      local_size: The number of replicas of each.
      engine: The name of the engine between them.

    Raises:
      ValueError: Too few ranks are left, a rank has several replicas, or the engine cannot carry
        it.
    """
    if synchronization is None or synchronization.replicas_wait:
        return
    received = f"but received {synchronization!r}"
    if synchronization.num_counted(world_size) < 1:
        ranks = "there is one rank" if world_size == 1 else f"there are {world_size} ranks"
        raise ValueError(
            f"Some ranks must be left whose gradients count, {received} and {ranks}, each a "
            "process. Start more with `tfdp run -n 4 --engine mpi train.py`, or drop fewer."
        )
    if local_size > 1:
        raise ValueError(
            f"A rank that may be left out must have one replica, {received} and {local_size} "
            "replicas in each process. Start a process for each device: `tfdp run -n "
            f"{world_size * local_size} --engine mpi train.py`."
        )
    if engine != "mpi":
        raise ValueError(
            f"Ranks that do not wait need MPI's engine, {received} and TensorFlow's engine, in "
            "whose collectives every rank of a group waits for all others. Start all ranks with "
            "MPI's launcher: `tfdp run -n 4 --engine mpi train.py`."
        )


def check_replicas(shard: str | None, replicas: int) -> None:
    """Checks that there are replicas to give parts to.

    Raises:
      ValueError: There is one replica.
    """
    if shard is not None and replicas == 1:
        raise ValueError(
            f"`shard` must have two replicas or more to give parts to, but received {shard!r} and "
            "there is one replica. Give more `devices`, start more processes with `tfdp run -n 2`, "
            "or leave `shard` out."
        )
