"""NVIDIA's GPUs as XLA's compiler is told of them, to compile for some that are not there."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class GPUKind:
    """A kind of GPU.

    Attributes:
      name: What NVIDIA calls it.
      compute_capability: The version of its instructions.
      multiprocessors: How many it has.
      float32_units: Of each multiprocessor.
      shared_memory: Bytes of each multiprocessor, and those of them that one block may have.
      l2_cache: Bytes.
      clock: GHz.
      memory: Bytes.
      memory_bandwidth: Bytes a second.
    """

    name: str
    compute_capability: int
    multiprocessors: int
    float32_units: int
    shared_memory: tuple[int, int]
    l2_cache: int
    clock: float
    memory: int
    memory_bandwidth: int

    def target(self) -> str:
        """Returns what XLA's compiler must know, a `GpuTargetConfigProto` as text."""
        shared, of_block = self.shared_memory
        facts = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "threads_per_core_limit": 2048,
            "core_count": self.multiprocessors,
            "fpus_per_core": self.float32_units,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "shared_memory_per_block": 49152,
            "shared_memory_per_block_optin": of_block,
            "shared_memory_per_core": shared,
            "l2_cache_size": self.l2_cache,
            "clock_rate_ghz": self.clock,
            "device_memory_size": self.memory,
            "memory_bandwidth": self.memory_bandwidth,
        }
        lines = [f"  {name}: {value}" for name, value in facts.items()]
        lines.append(f"  cuda_compute_capability {{ major: {self.compute_capability} }}")
        return "\n".join(
            [
                "gpu_device_info {",
                *lines,
                "}",
                'platform_name: "CUDA"',
                "dnn_version_info { major: 9 minor: 10 }",
                "runtime_version { major: 12 minor: 9 }",
                f'device_description_str: "{self.name}"',
                "",
            ]
        )


# From the specifications that XLA has of them (openxla/xla, xla/backends/gpu/target_config/specs).
KINDS = {
    "a100": GPUKind(
        "NVIDIA A100-SXM4-80GB", 8, 108, 64, (167936, 166912), 40 * 2**20, 1.41, 85100068864,
        2039040000000,
    ),
    "h100": GPUKind(
        "NVIDIA H100 80GB HBM3", 9, 132, 128, (233472, 232448), 50 * 2**20, 1.98, 84942979072,
        3352320000000,
    ),
    "b200": GPUKind(
        "NVIDIA B200", 10, 148, 128, (233472, 232448), 132644864, 1.965, 191514411008,
        7672320000000,
    ),
}  # fmt: skip


def parsed(topology: str) -> tuple[GPUKind, str] | None:
    """Returns the kind of GPU that a topology names, and how many there are as JAX is told of it.

    Args:
      topology: Its name; None is returned for that of TPUs.

    Raises:
      ValueError: It names a kind, and not how many.

    >>> kind, counts = parsed("h100:2x8")
    >>> kind.name, counts
    ('NVIDIA H100 80GB HBM3', '1x2x8')
    >>> parsed("v5e:2x4")
    """
    kind, _, counts = topology.partition(":")
    if kind not in KINDS:
        return None
    if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)?", counts) is None:
        raise ValueError(
            "A topology of GPUs must be their kind and how many there are, or how many hosts and "
            f"how many GPUs each has, but received {topology!r}. Use one such as "
            f'"{kind}:8" or "{kind}:2x8".'
        )
    return KINDS[kind], f"1x{counts}" if "x" in counts else f"1x1x{counts}"
