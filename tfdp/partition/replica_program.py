"""The program of a replica in the making: its arguments, and what all its functions share."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdp.base import bucketing
from tfdp.partition._tensorflow import FunctionDef
from tfdp.partition.communicator import Collective, Communicator
from tfdp.partition.emit.arithmetic import Arithmetic
from tfdp.partition.emit.writer import Output, Writer, unique_name
from tfdp.partition.layouts import Sharded
from tfdp.partition.program_record import Content, Exchanged, ProgramRecord
from tfdp.partition.sizes import Batch, FixedShard, Size, SizeLike, Symbol
from tfdp.partition.source import SourceOp
from tfdp.partition.tensors import Dimension, Tensor, size_bytes, static


class NeedlessError(Exception):
    """A collective was asked for where nothing need be sent."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A replica's place in a batch, as arguments of its program, all int32.

    Attributes:
      counts: The number of the examples of each replica, a vector.
      count: The number of the replica's own examples.
      rows: The number of those that it computes on: `count`, or 1 padding row where that is 0.
      start: The number of examples before its own.
      total: The number of examples of the batch.
    """

    counts: Output
    count: Output
    rows: Output
    start: Output
    total: Output


_FIELDS = dataclasses.fields(Place)


class ProgramBuilder:
    """What the functions of one replica's program share while they are written.

    Args:
      name: The beginning of the functions' names.
      batches: The batches that are sharded.
      communicator: Makes the collectives.
      may_be_empty: Whether a replica may have no examples of a batch. It computes on a padding row
        then, which takes a few operations that the program does without otherwise.
      is_compiled: Whether XLA draws its random numbers.
      adds_in_any_order: Whether kernels add what goes to one place as it comes, see
        `rules.deterministic_scatter`.

    Attributes:
      main: The program's function.
      rank: The replica's number, an int32 scalar: the program's first argument.
      places: The replica's places in the batches: the next arguments.
      externals: The tensors from outside that the program takes, one for each local replica.
      functions: The functions that others call by name, such as bodies of loops.
      collectives: The functions of the collectives by the name by which the program calls them.
      report: What is exchanged, and why.
      latest_layouts: How the last axis of a length was sharded that is a multiple of a batch's:
        what is made in that length is sharded so, too, as it is likely to meet the other.
      entries: Batches of which it is known only when the step runs how many each replica has.
      keeps_whole: Whether what is kept in optionals is whole, for what branches keep in the same
        ones could not be told apart.
      regions: By the number of each `marks.PerReplicaRegion` how its rows are sharded; None:
        not.
      may_skip: Whether a replica need not compute where its terms are left out already.
    """

    def __init__(
        self,
        name: str,
        batches: Sequence[Batch],
        communicator: Communicator,
        may_be_empty: bool,
        is_compiled: bool = False,
        adds_in_any_order: bool = False,
    ) -> None:
        self.main = Writer(unique_name(name))
        self.communicator, self.is_compiled = communicator, is_compiled
        self.adds_in_any_order = adds_in_any_order and communicator.num_replicas > 1
        self.may_be_empty = may_be_empty and communicator.num_replicas > 1
        self.rank = self.main.argument("rank", tf.int32)
        self.places = {
            batch: Place(
                *(self.main.argument(f"{field.name}_{number}", tf.int32) for field in _FIELDS)
            )
            for number, batch in enumerate(batches)
        }
        self._given = list(self.places.values())
        self.externals: list[tuple[Output, Sequence[tf.Tensor]]] = []
        self.functions: list[FunctionDef] = []
        self.collectives: dict[str, Collective] = {}
        self.keeps_whole = self.may_skip = self._sends_nothing = False
        self.report = ProgramRecord(communicator.num_replicas)
        self.latest_layouts: dict[tuple[Batch, SizeLike], Sharded] = {}
        self.entries: set[Batch] = set()
        self.regions: dict[int, Sharded | None] = {}
        self._external: dict[tuple[int, ...], Output] = {}
        self._sizes: dict[tuple[Writer, SizeLike], Output] = {}
        self._flags: dict[tuple[str, Output], Output] = {}
        self._last: dict[Writer, str] = {}
        self._last_beside: dict[Writer, str] = {}
        self._fixed: dict[FixedShard, Place] = {}
        self._compared: tuple[Output, tf.TensorSpec, Sequence[str]] | None = None

    @property
    def num_replicas(self) -> int:
        return self.communicator.num_replicas

    def external(self, tensors: Sequence[tf.Tensor]) -> Output:
        """Returns an argument that is another tensor from outside on each local replica."""
        key = tuple(map(id, tensors))
        if key not in self._external:
            argument = self.main.argument(f"external_{len(self.externals)}", tensors[0].dtype)
            self.externals.append((argument, tensors))
            self._external[key] = argument
        return self._external[key]

    # ---- places and sizes

    def numbers(self) -> set[str]:
        """Returns the names of the arguments that are numbers of replicas or examples."""
        places = [getattr(place, each.name) for place in self._given for each in _FIELDS]
        return {self.rank.name, *(each.name for each in places)}

    def place(self, batch: Batch) -> Place:
        """Returns the replica's place in a batch, or in a sharding that is fixed, by its number."""
        if not isinstance(batch, FixedShard):
            return self.places[batch]
        if batch not in self._fixed:
            self._fixed[batch] = self._fixed_place(batch)
        return self._fixed[batch]

    def _fixed_place(self, batch: FixedShard) -> Place:
        write = Arithmetic(self.main)
        control, self.main.control = self.main.control, ()
        begins, ends = batch.bounds[:-1], batch.bounds[1:]
        counts = write.constant([end - begin for begin, end in zip(begins, ends, strict=True)])
        count = write.gather(counts, self.rank)
        start = write.gather(write.constant(list(begins)), self.rank)
        self.main.control = control
        return Place(counts, count, count, start, write.constant(batch.bounds[-1]))

    @property
    def only_batch(self) -> Batch | None:
        """The batch whose examples the program is given; None where there are several, or none."""
        batches = [each for each in self.places if not isinstance(each, FixedShard)]
        return batches[0] if len(batches) == 1 else None

    @property
    def batches(self) -> list[Batch]:
        """The batches that are sharded, and the shardings that are fixed."""
        return [*self.places, *self._fixed]

    def may_lack_rows(self, batch: Batch) -> bool:
        """Returns whether a replica may have a padding row in place of a batch's examples."""
        if batch in self.entries:
            return True
        return self.may_be_empty and not isinstance(batch, FixedShard)

    def flag(self, of: str, number: Output) -> Output:
        """Returns whether a number of the replica has a property: one flag for all that ask.

        A GPU has each flag copied to it.

        Args:
          of: "positive" or "zero".
          number: The replica's own, or a batch's: an argument, or computed of such.
        """
        if (of, number) not in self._flags:
            write = Arithmetic(self.main)
            control, self.main.control = self.main.control, ()
            made = write.greater(number, 0) if of == "positive" else write.equal(number, 0)
            self._flags[of, number] = made
            self.main.control = control
        return self._flags[of, number]

    def size(self, writer: Writer, size: SizeLike) -> Output:
        """Returns a size as an int32 scalar that a function can use."""
        if isinstance(size, int):
            return writer.constant(size, tf.int32)
        if (writer, size) not in self._sizes:
            write = Arithmetic(writer)
            total: Output | None = None
            for symbols, factor in size.terms.items():
                term = None if factor == 1 and symbols else write.constant(factor)
                for symbol in symbols:
                    value = self._symbol(writer, symbol)
                    term = value if term is None else write.multiply(term, value)
                total = term if total is None else write.add(total, term)
            assert total is not None  # a `Size` has a term
            self._sizes[writer, size] = total
        return self._sizes[writer, size]

    def _symbol(self, writer: Writer, symbol: Symbol) -> Output:
        if isinstance(symbol, Batch):
            return self.places[symbol].total
        assert isinstance(symbol, Dimension)
        key = (symbol.output.writer, Size.of(symbol))
        if key not in self._sizes:
            # In the function that has the tensor, so that no other captures it whole.
            write = Arithmetic(symbol.output.writer)
            control, write.writer.control = write.writer.control, ()
            self._sizes[key] = write.element(write.shape(symbol.output), symbol.axis)
            write.writer.control = control
        return self._sizes[key]

    def knows(self, writer: Writer, size: Any) -> bool:
        """Returns whether a function can compute a size: whether its symbols are known there."""
        if not isinstance(size, Size):
            return True
        around = set(_outwards(writer))
        return all(
            not isinstance(symbol, Dimension) or symbol.output.writer in around
            for symbol in size.symbols()
        )

    # ---- collectives

    def compare(self, told: Output, spec: tf.TensorSpec, names: Sequence[str]) -> None:
        """Has what processes tell compared before the first collective of the program ends.

        What differs between them could have some wait in collectives that others do not come to.

        Args:
          told: The replica's partial of a matrix with a row for each process.
          spec: The matrix.
          names: What its columns are called.
        """
        self._compared = told, spec, names

    def sum(
        self, writer: Writer, bucket: Sequence[Tensor], op: SourceOp | None, why: str
    ) -> list[Output]:
        """Writes the sums of partials that travel together."""
        inputs = [tensor.local for tensor in bucket]
        specs = [tf.TensorSpec(static(tensor), tensor.dtype) for tensor in bucket]
        contents = [Content.of_tensor(tensor) for tensor in bucket]
        names: Sequence[str] = ()
        if self.compares_with(writer, bucket):
            assert self._compared is not None
            (told, spec, names), self._compared = self._compared, None
            inputs, specs = [*inputs, told], [*specs, spec]
            contents.append(Content.of(told, spec.shape.as_list()))
        collective = self.communicator.sum(specs, names)
        outputs = self.exchange(writer, "sum", collective, inputs, op, why, contents)
        return outputs[: len(bucket)]

    def compare_at_last(self) -> None:
        """Writes the comparison by itself, if no partials took it along."""
        if self._compared is not None:
            self.sum(self.main, (), None, "processes compare what they are given")

    def compares_with(self, writer: Writer, bucket: Sequence[Tensor]) -> bool:
        """Returns whether what is to be compared can travel with partials."""
        if self._compared is None or writer is not self.main:
            return False
        return not bucket or any(tensor.dtype == self._compared[1].dtype for tensor in bucket)

    def exchange(
        self,
        writer: Writer,
        kind: str,
        collective: Collective,
        inputs: Sequence[Output],
        op: SourceOp | None,
        why: str,
        contents: Sequence[Content] = (),
        makes_whole: bool = False,
        beside: bool = False,
    ) -> list[Output]:
        """Writes a collective into a function, after the last one there.

        Args:
          writer: The function.
          kind: "sum", "gather" or "from first".
          collective: What the local replicas run.
          inputs: What they give.
          op: The operation that asked for it.
          why: What it needed it for, in words.
          contents: What is known of the tensors that travel; (): the names and dtypes of `inputs`.
          makes_whole: Whether it gives a tensor whole of which each replica has its examples.
          beside: Whether it runs beside the others of the program's function, which it is in, after
            the last one that does.

        Raises:
          NeedlessError: What it gives has been made without it, see `sending_nothing`.
        """
        if self._sends_nothing:
            raise NeedlessError
        name = f"tfdp_collective_{len(self.collectives)}"
        self.collectives[name] = collective
        captures = [self.external(tensors) for tensors in zip(*collective.captured, strict=True)]
        keys = [writer.constant(key, tf.int32) for key in collective.keys]
        outputs = self.in_order(
            writer,
            lambda: Arithmetic(writer).call(name, [*inputs, *keys, *captures], collective.dtypes),
            beside,
        )
        self.report.exchanged.append(
            Exchanged(
                kind=kind,
                # A gather takes the numbers of rows besides.
                contents=contents
                or [Content.of(each) for each in (inputs[:1] if kind == "gather" else inputs)],
                sent=collective.sent,
                operation=op.type if op else "",
                line=op.line() if op else "",
                why=why,
                function=writer.name,
                node=outputs[0].node,
                makes_whole=makes_whole,
            )
        )
        return outputs

    def buckets(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """Returns tensors of one dtype that travel together, in the order in which they come."""
        found = []
        items = [bucketing.Item(tensor.dtype.name, size_bytes(tensor)) for tensor in tensors]
        most, alone = self.communicator.bucket_bytes, self.communicator.alone_bytes
        for members in bucketing.assign(items, most, alone):
            found.append([tensors[index] for index in members])
        return found

    def in_order(self, writer: Writer, write: Any, beside: bool = False) -> list[Output]:
        """Writes what contains a collective so that it begins after the last one of a function."""
        last = self._last_beside if beside else self._last
        if writer is self.main and not beside:
            self.compare_at_last()
        before = writer.control
        if writer in last:
            writer.control = (*before, last[writer])
        outputs: list[Output] = write()
        writer.control = before
        last[writer] = f"^{writer.written[-1]}"
        return outputs

    @contextlib.contextmanager
    def sending_nothing(self) -> Iterator[None]:
        """Has collectives that are asked for inside raise `NeedlessError`."""
        self._sends_nothing = True
        try:
            yield
        finally:
            self._sends_nothing = False

    def mark(self) -> tuple[int, ...]:
        """Returns a place to go back to: a loop's body is written until its layouts are found."""
        return len(self.functions), *self.report.mark()

    def go_back(self, mark: tuple[int, ...], writer: Writer) -> None:
        """Forgets the functions since a mark, and what is recorded of them.

        Args:
          mark: The mark.
          writer: The function that would have called them. It keeps what it was given for them, and
            so do the functions around it.
        """
        functions, *records = mark
        del self.functions[functions:]
        self.report.go_back(records, {each.name for each in _outwards(writer)})

    def communicates(self, writer: Writer) -> bool:
        """Returns whether a function contains a collective."""
        return writer in self._last

    def effects(self, writer: Writer, others: Sequence[str]) -> list[str]:
        """Returns the operations that a call of a function waits for: effects, and collectives.

        TensorFlow would leave out a collective whose result one replica's caller has no use for.
        """
        every = [last[writer] for last in (self._last_beside, self._last) if writer in last]
        return [*others, *(each.removeprefix("^") for each in every)]


def _outwards(writer: Writer) -> Iterator[Writer]:
    """Yields a function and those around it."""
    at: Writer | None = writer
    while at is not None:
        yield at
        at = at.outer
