"""The devices that an `XLAStrategy` is given."""

import collections
from collections.abc import Iterable
from typing import Any

from tfdp.strategy.xla import accelerators
from tfdp.strategy.xla._jax import described, jax


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
        accelerators.check_there(found)
        return _checked(found, "JAX has found", "Set CUDA_VISIBLE_DEVICES to those of one kind.")
    if isinstance(given, str):
        return described(given)
    found = list(given) if isinstance(given, Iterable) else []
    use = "Use `jax.devices()`, or its first 8, `jax.devices()[:8]`, or leave it out."
    return _checked(found, "received", use, given)


def _kind(device: Any) -> tuple[str, str] | None:
    """Returns a device's platform and model; None: it is no device of JAX."""
    platform = getattr(device, "platform", None)
    return None if platform is None else (platform, getattr(device, "device_kind", ""))


def _checked(found: list[Any], how: str, use: str, given: Any = None) -> list[Any]:
    kinds = {_kind(device) for device in found}
    if len(kinds) != 1 or None in kinds or len(set(found)) != len(found):
        raise ValueError(
            "`devices` must be different devices of JAX of one kind, one at least, but "
            f"{how} {given or found}. {use}"
        )
    shares = collections.Counter(device.process_index for device in found)
    if len(set(shares.values())) != 1 or jax.process_index() not in shares:
        raise ValueError(
            "Each process must have as many of `devices` as the others, one at least, but by the "
            f"number of the process they have {dict(sorted(shares.items()))}. Leave `devices` out, "
            "or choose as many of each process."
        )
    return found
