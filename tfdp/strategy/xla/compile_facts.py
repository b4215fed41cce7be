"""The report of a compiled program: collectives, transfers to the host, memory."""

import re
from typing import Any, NamedTuple

import numpy as np

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


class CompileFacts(NamedTuple):
    """What is known of a compiled program.

    Attributes:
      seconds: The seconds that it took to trace, to lower and to compile it, by these names.
      collectives: How many collectives of each kind a step of a device has.
      bytes_moved: The bytes of their results.
      custom_calls: The targets of calls of what is no HLO.
      host_transfers: What moves data from or to the host within the step: "infeed", "outfeed",
        "send", "recv", "host memory", or the target of a callback.
      memory_bytes: The bytes of a device that it needs at once: of arguments, results and between.
      weights_copied: How many of the arrays that it writes, variables or several joined, are not
        left where the old one was.
      products: How many products and convolutions the step has, before it is compiled, by what
        their operands are computed in: "float32", "TF32", "bfloat16", "bfloat16 x 3" (in three
        passes) or "bfloat16 x 6", or another dtype. GPUs before Ampere have no TF32, and compute
        in float32.
      gathered_at_start: The names of the weights that are sharded between steps and replicated
        in all of a step: see `tfdp.strategy.xla.gathers`.
      operations: The operations on numbers of a step of a device, as XLA counts them.
      bytes_accessed: The bytes that they read and write in its memory.
      layouts: Of each weight whose layout was derived its layout, what it saves, and what a step
        sends for it.
    """

    seconds: dict[str, float]
    collectives: dict[str, int]
    bytes_moved: int
    custom_calls: tuple[str, ...]
    host_transfers: tuple[str, ...]
    memory_bytes: int
    weights_copied: int
    products: dict[str, int]
    gathered_at_start: tuple[str, ...]
    operations: float
    bytes_accessed: float
    layouts: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = ", ".join(f"{count} {kind}" for kind, count in self.collectives.items())
        took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        memory = f"{self.memory_bytes / 2**20:.0f} MiB a device"
        products = ", ".join(f"{count} products in {name}" for name, count in self.products.items())
        whole = ", ".join(self.gathered_at_start)
        at_start = f"gathered as a step begins: {whole}" if whole else ""
        said = [found or "no collective", products, memory, took, at_start]
        return "\n".join(["; ".join(filter(None, said)), *self.layouts])


def of(
    compiled: Any,
    seconds: dict[str, float],
    num_written: int,
    products: dict[str, int] | None = None,
    gathered_at_start: tuple[str, ...] = (),
) -> CompileFacts:
    """Returns what is known of a compiled program.

    Args:
      compiled: The program, as JAX has it.
      seconds: See `CompileFacts`.
      num_written: The number of variables that it writes.
      products: See `CompileFacts`; none are known of other programs.
      gathered_at_start: See `CompileFacts`.
    """
    text = compiled.as_text()
    exchanged = _collectives(text)
    collectives = {kind: len(shapes) for kind, shapes in exchanged.items()}
    moved = sum(_bytes(each) for shapes in exchanged.values() for each in shapes)
    memory = compiled.memory_analysis()
    needed = (
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes
    )
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", text)
    in_place = len(re.findall(r"-alias\)", aliases.group(1))) if aliases else 0
    targets = tuple(sorted(set(re.findall(r'custom_call_target="([^"]+)"', text))))
    return CompileFacts(
        seconds,
        collectives,
        moved,
        targets,
        _host_transfers(text, targets),
        needed,
        num_written - in_place,
        products or {},
        gathered_at_start,
        *_costs(compiled),
    )


def _costs(compiled: Any) -> tuple[float, float]:
    """Returns the operations of a compiled program, and the bytes that they read and write."""
    found = compiled.cost_analysis() or {}
    return float(found.get("flops", 0.0)), float(found.get("bytes accessed", 0.0))


def _collectives(text: str) -> dict[str, list[str]]:
    """Returns for each kind of collective that a compiled program's text has their results.

    Where chips compute while they exchange, one collective is in several computations, a chain, in
    which it has one channel. Elsewhere each has its own line, and several may have one channel.
    """
    found: dict[str, list[str]] = {}
    for kind in _KINDS:
        results: dict[Any, str] = {}
        for line, each in enumerate(re.finditer(rf"= (.+?) {kind}(?:-start)?\(.*", text)):
            chain = re.search(r"(channel_id=\d+),.*(chain_id=\"\d+\")", each.group())
            results[chain.groups() if chain else line] = each.group(1)
        if results:
            found[kind] = list(results.values())
    return found


def _host_transfers(text: str, targets: tuple[str, ...]) -> tuple[str, ...]:
    """Returns what a compiled program's text has that moves data from or to the host."""
    found = [kind for kind in ("infeed", "outfeed") if re.search(rf" {kind}\(", text)]
    for kind in ("send", "recv"):
        if re.search(rf" {kind}\(.*is_host_transfer=true", text):
            found.append(kind)
    if "S(5)" in text:  # the number of the host's memory in layouts
        found.append("host memory")
    return (*found, *(target for target in targets if "callback" in target))


_SIZES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "f64": 8}


def _bytes(shapes: str) -> int:
    """Returns the bytes of a result, one shape or several, such as "(f32[8,2]{1,0}, s32[])"."""
    total = 0
    for name, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
        size = _SIZES.get(name) or int(re.sub(r"\D", "", name) or 8) // 8
        total += size * int(np.prod([int(each) for each in sizes.split(",") if each]))
    return total
