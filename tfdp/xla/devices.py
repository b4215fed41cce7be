"""The devices that an `XLAStrategy` is given, and the processes that share them."""

from __future__ import annotations

import collections
import logging
import os
from collections.abc import Iterable
from typing import Any

from tfdp.cluster import tf_config
from tfdp.errors import ClusterError
from tfdp.xla._jax import coordinator_address, described, jax


def devices_of(given: Any) -> list[Any]:
    """Returns the devices of JAX that a strategy is given.

    Args:
      given: JAX's devices; None: all of them; the name of a topology: chips that may not be there.

    Raises:
      ValueError: They are something else, of several kinds, or none; or processes have unequal
        numbers of them, or this one none.
    """
    if given is None:
        found = jax.devices()
        is_chosen = bool(getattr(jax.config, "jax_platforms", None))
        if len(found) == 1 and found[0].platform == "cpu" and not is_chosen:
            logging.getLogger("tfdp").warning(
                "JAX has found no TPU: the host's CPU takes its place, as one device. On a host "
                "with TPUs `pip install 'jax[tpu]'` has what finds them. To try several devices "
                "without a TPU, start with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=8."
            )
        return list(found)
    if isinstance(given, str):
        return described(given)
    found = list(given) if isinstance(given, Iterable) else []
    kinds = {getattr(device, "platform", None) for device in found}
    if len(kinds) != 1 or None in kinds or len(set(found)) != len(found):
        raise ValueError(
            "`devices` must be different devices of JAX of one kind, one at least, but received "
            f"{given}. Use `jax.devices()`, or its first 8, `jax.devices()[:8]`, or leave it out."
        )
    shares = collections.Counter(device.process_index for device in found)
    if len(set(shares.values())) != 1 or jax.process_index() not in shares:
        raise ValueError(
            "Each process must have as many of `devices` as the others, one at least, but by the "
            f"number of the process they have {dict(sorted(shares.items()))}. Leave `devices` out, "
            "or choose as many of each process."
        )
    return found


def check_joined() -> None:
    """Checks that the processes of a cluster have joined in JAX: each would train by itself.

    Raises:
      ClusterError: `TF_CONFIG`, as of `tfdp run`, has several, and JAX knows of this one alone; or
        they share devices, and have not met.
    """
    if jax.process_count() > 1 and coordinator_address() is None:
        raise ClusterError(
            f"The {jax.process_count()} processes that share devices must have met to train as "
            "one, but this one has not been told where. At the beginning of the program call "
            "`jax.distributed.initialize()`."
        )
    cluster = tf_config.detect(os.environ)
    if cluster is None or cluster.world_size == 1 or jax.process_count() > 1:
        return
    raise ClusterError(
        f"The {cluster.world_size} processes of `TF_CONFIG` must have joined in JAX to train as "
        f"one, but rank {cluster.rank} is alone in it. At the beginning of the program call "
        f'`jax.distributed.initialize("{cluster.coordinator}", {cluster.world_size}, '
        f"{cluster.rank})`, or unset `TF_CONFIG`."
    )
