"""The strategy for partitioned programs: its scope, replicas, and agreement of processes."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdp.communication.collectives import Reducer
from tfdp.communication.engines import Engine, Sequences, TensorFlowEngine
from tfdp.communication.replicas import Agreement, ProcessGroup
from tfdp.partition import ReplicaProgram, operations_of, text_of
from tfdp.strategy.cross_process import CrossProcess
from tfdp.strategy.programs import reduction_order, tracing
from tfdp.strategy.programs.argument_sharding import ArgumentSharding
from tfdp.strategy.programs.arguments import Arguments
from tfdp.strategy.programs.collective_functions import CollectiveFunctions
from tfdp.strategy.programs.shared_collectives import SharedFunctions
from tfdp.strategy.strategy_replicas import StrategyReplicas

# What all replicas compute alike must have the same bits, or their weights part in the last ones:
# the gradient of a convolution has others with one thread than with four.
_BITS = "what decides the last bits of an operation (by TF_NUM_INTRAOP_THREADS)"


class ProgramContext:
    """Traces programs in a strategy's scope, and makes their collectives alike in all processes.

    Args:
      strategy: The strategy, whose scope variables are made in.
      engine: Moves tensors between replicas.
      replicas: The replicas.
      agreement: Brings the processes to the same collectives.
      between: Gathers what processes have.
      as_replica: Calls a function as the replica of a number, while it is traced.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        engine: Engine,
        replicas: StrategyReplicas,
        agreement: Agreement,
        between: CrossProcess,
        as_replica: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._strategy = strategy
        self._as_replica = as_replica
        self._engine, self._replicas = engine, replicas
        self._agreement, self._between = agreement, between
        self._shared: SharedFunctions | None = None
        self._is_compared = False

    @property
    def num_replicas(self) -> int:
        """The number of replicas in all processes."""
        return self._replicas.num_replicas

    @property
    def warned_about(self) -> set[str]:
        """The subjects that were warned about under the strategy."""
        found: set[str] = self._strategy.adapter_state.warned_about
        return found

    @property
    def processes(self) -> ProcessGroup:
        """The processes that the replicas are in."""
        return self._replicas.processes

    @property
    def reducer(self) -> Reducer:
        """Sums between the replicas."""
        return self._replicas.reducer

    @property
    def devices(self) -> Sequence[str]:
        """The devices of the local replicas."""
        return self._replicas.devices

    @property
    def first_rank(self) -> int:
        """The number of the first local replica."""
        return self.processes.rank * len(self.devices)

    def collectives(self) -> tuple[CollectiveFunctions, Sequences]:
        """Returns what makes the collectives of one more program, and their records.

        Raises:
          RankMismatchError: The ranks would compute other bits of the same values.
        """
        if not self._is_compared:
            self.processes.compare(_BITS, {"number of threads": reduction_order.threads()})
            self._is_compared = True
        sequences = self._agreement.new_sequences()
        made = CollectiveFunctions(
            self._engine,
            self._replicas.reducer,
            sequences,
            self.devices,
            self.first_rank,
            self._shared_functions(),
            as_replica=self._as_replica,
            keeps_partials=self._replicas.exchange.keeps_partials,
            partials_by_rows=not self._replicas.exchange.replicas_wait,
        )
        return made, sequences

    def agree_on(self, sequences: Sequences, program: ReplicaProgram, sharding: str) -> int:
        """Waits until the other processes have the same program, with the same collectives.

        Returns a number of 24 bits that tells the program from others.

        Args:
          sequences: The records of its collectives.
          program: The program.
          sharding: How its arguments are sharded.

        Raises:
          CollectiveMismatchError: They have another.
        """
        sequences.check()
        if self.processes.world_size == 1:
            return 0
        name = program.name.split("_tfdp_")[0]
        operations = list(operations_of(program.source))

        def described(number: int) -> str:
            if number == len(operations):
                return sharding
            return f"{operations[number].type} at {operations[number].line()}"

        texts = [*map(text_of, operations), sharding]
        self._agreement.reach_program(texts, name, described)
        self._agreement.reach(sequences, name)
        return int(hashlib.sha256("\n".join(texts).encode()).hexdigest()[:6], 16)

    @property
    def may_skip(self) -> bool:
        """Whether a replica may run a program on no examples, as it is late."""
        return self._replicas.arrivals is not None

    def is_late(self) -> tf.Tensor:
        """Returns whether the next update is made without this process' replica, a boolean."""
        assert self._replicas.arrivals is not None
        return self._replicas.arrivals.is_closed()

    def sharding(self, arguments: Arguments) -> ArgumentSharding:
        """Returns how the arguments of a call are sharded, alike in all processes."""

        def of_all(lengths: list[list[int | None]]) -> list[list[int | None]]:
            # A graph does not ask: processes trace at different times.
            alone = self.processes.world_size == 1 or not tf.executing_eagerly()
            if alone or len(lengths) < 2:
                return lengths
            posts = self.processes.all_gather("the rows of a partitioned call's arguments", lengths)
            if any(len(post.value) != len(lengths) for post in posts):
                return lengths  # the programs differ, of which an error tells
            joined = zip(*(post.value for post in posts), strict=True)
            return [[length for own in parts for length in own] for parts in joined]

        return arguments.sharding(self.num_replicas, of_all)

    def own(self, numbers: tf.Tensor) -> list[tf.Tensor]:
        """Returns the numbers of the local replicas among those of all."""
        return [numbers[self.first_rank + index] for index in range(len(self.devices))]

    def of_all(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns rows of any dtype, those of each process, in the order of replicas."""
        return self._between.gather(rows, 0)

    def of_all_processes(self, numbers: tf.Tensor) -> tf.Tensor:
        """Returns the vector of numbers that each process has, in order."""
        return self._between.of_all_processes(numbers)

    def of_first(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the first process' tensor."""
        return self._between.of_first(tensor)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Traces programs as on one device."""
        as_on_one_device = tracing.as_on_one_device(
            self._strategy,
            moments_are_per_replica=self._strategy.batch_normalization == "per_replica",
        )
        with tracing.outside_of_graphs(), as_on_one_device:
            yield

    def _shared_functions(self) -> SharedFunctions | None:
        # Between processes, and by other topologies, collectives get their keys while traced.
        alone = self.processes.world_size == 1 and self._replicas.reducer.is_native
        if not alone or not isinstance(self._engine, TensorFlowEngine):
            return None
        if self._shared is None:
            self._shared = SharedFunctions(self._engine, self.devices)
        return self._shared
