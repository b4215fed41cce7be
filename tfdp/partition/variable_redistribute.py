"""Redistribution of sharded variables: reduce-scatter of sums, and all-gather of shards."""

from collections.abc import Sequence

from tfdp.base.sharding import Sharding
from tfdp.partition.communicator import Collective
from tfdp.partition.emit.writer import Output
from tfdp.partition.layouts import PARTIAL, Sharded
from tfdp.partition.program_record import Content
from tfdp.partition.redistribute import Redistribution, Waiting
from tfdp.partition.sizes import FixedShard
from tfdp.partition.tensors import Tensor


class VariableRedistribution(Redistribution):
    """Makes parts of sums, and wholes of parts, of which many travel together."""

    def scatter(self, tensors: Sequence[Tensor], layouts: Sequence[Sharded], why: str) -> None:
        """Sums partials, of which each replica gets its part: see `part`."""
        layout_of = {id(tensor): each for tensor, each in zip(tensors, layouts, strict=True)}
        for bucket in self.program.buckets(tensors):
            own = [layout_of[id(tensor)] for tensor in bucket]
            shardings = [_sharding(tensor, each) for tensor, each in zip(bucket, own, strict=True)]
            collective = self.program.communicator.sum_parts(bucket[0].dtype, shardings)
            found = self._exchanged("sum of parts", collective, bucket, why)
            for tensor, layout, part in zip(bucket, own, found, strict=True):
                tensor.parts[layout] = part

    def join(self, tensors: Sequence[Tensor], why: str, after: Sequence[str] = ()) -> None:
        """Gathers parts of variables; each tensor's `whole` is made of them then.

        Args:
          tensors: The tensors.
          why: What they are needed for.
          after: Control inputs, which are done before.
        """
        control = self.writer.control
        self.writer.control = (*control, *after)
        for bucket in self.program.buckets(tensors):
            shardings = [_sharding(tensor, tensor.sharded) for tensor in bucket]
            collective = self.program.communicator.gather_parts(bucket[0].dtype, shardings)
            found = self._exchanged("gather of parts", collective, bucket, why)
            for tensor, whole in zip(bucket, found, strict=True):
                tensor.replicated = whole
        self.writer.control = control

    def _exchanged(
        self, kind: str, collective: Collective, tensors: Sequence[Tensor], why: str
    ) -> list[Output]:
        inputs = [tensor.local for tensor in tensors]
        contents = [Content.of_tensor(tensor) for tensor in tensors]
        return self.program.exchange(self.writer, kind, collective, inputs, self.op, why, contents)

    def require_joined(self, tensors: Sequence[Tensor], briefly: bool = False) -> None:
        """Puts the operation off until parts of variables are gathered, with those of others.

        Args:
          tensors: The tensors; those that are no such parts are passed over.
          briefly: Whether what needs them later is to gather them again: see `prefetch`.

        Raises:
          Waiting: They are not gathered.
        """
        waiting = [tensor for tensor in tensors if self._can_be_joined(tensor)]
        if waiting:
            raise Waiting(waiting, briefly=briefly)

    def _can_be_joined(self, tensor: Tensor) -> bool:
        layout = tensor.sharded
        if layout is None or tensor.replicated is not None or tensor.origin is not None:
            return False
        return self._is_sharded_alone(tensor, layout)

    def scattered(self, tensor: Tensor, layout: Sharded, why: str = "") -> Output:
        """Returns the replica's part of a partial's sum.

        Raises:
          Waiting: It is not summed yet.
        """
        is_open = tensor.layout == PARTIAL and tensor.replicated is None and tensor.origin is None
        if is_open and layout not in tensor.parts and self._is_sharded_alone(tensor, layout):
            raise Waiting([tensor], layout)
        return self.part(tensor, layout, why)

    def _is_sharded_alone(self, tensor: Tensor, layout: Sharded) -> bool:
        """Returns whether a tensor of a known shape is sharded along an axis as a variable is."""
        is_fixed = layout.is_fixed and layout.inner == layout.outer == 1
        known = tensor.shape is not None and all(isinstance(size, int) for size in tensor.shape)
        return is_fixed and known and self.program.num_replicas > 1


def _sharding(tensor: Tensor, layout: Sharded | None) -> Sharding:
    """Returns how a tensor of a known shape is sharded."""
    assert layout is not None and isinstance(layout.batch, FixedShard)
    sizes = [size for size in tensor.shape or () if isinstance(size, int)]
    return Sharding(tuple(sizes), layout.axis, layout.batch.bounds)
