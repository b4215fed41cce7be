"""Programs that nobody wrote for tfdp train on many replicas as on one device, or say so."""

import contextlib
import importlib
import pathlib

import harness
import keras
import pytest
import tensorflow as tf
import tiers
from foreign.table import PROGRAMS
from replica_counts import CLUSTER_REPLICAS, count_id

import tfdp
from tfdp.partition.program_record import ProgramRecord

FOLDER = pathlib.Path(__file__).parent
for module in sorted(FOLDER.glob("*.py")):
    if not module.stem.startswith("test_"):
        importlib.import_module(f"foreign.{module.stem}")

# Each shows what no other test of `make test` does.
FAST = {
    *("accumulation_by_hand", "contractive", "diffusion", "learned_task_weights", "lookahead"),
    *("physics_informed", "vq_vae"),
}
# `fit` with optimizers that a step of the user's builds, and a loop that knows nothing of replicas.
INSIDE = {"conditional_gan", "loop_of_one_device"}
# One for each mechanism that depends on where the replicas are: rows of tables and of positions,
# what is gathered, own loops, decisions of callbacks, data that each process draws, named outputs.
TELLING = {
    *("transformer_classifier", "dual_encoder", "deep_q_learning", "stops_early", "generator"),
    "tickets",
}

# The types of operations that every replica computes whole, of programs that have some, and why:
WHOLE = {
    # It wants the first examples of a batch, or another order of them, or puts them before others.
    "memory_bank": {"StridedSlice"},
    "mixup_in_step": {"TopKV2"},
    "queue_of_keys": {"ConcatV2"},
    # Entries are named by numbers that may be those of another example.
    "captcha": {"ScatterNd"},
    "policy_gradient": {"UnsortedSegmentSum"},
    # `tf.vectorized_map` takes the norms of the examples' gradients in a loop, one by one.
    "private_gradients": {"StridedSlice", "Mul"},
    # Keras' RMSprop looks for rows of a table that are in two sets of them.
    "tickets": {"ScatterNd", "StatelessIf", "StridedSlice", "ConcatV2"},
    "translation": {"ScatterNd", "StatelessIf", "StridedSlice", "ConcatV2"},
    # There is no rule for crosses of columns; what follows is as long as they are, and no longer
    # known to be as long as the batch.
    "wide_and_deep": {"SparseCross", "ConcatV2", "Sub"},
}


@pytest.fixture
def computed_whole(monkeypatch):
    """Returns a function that gives the types of operations that programs have computed whole."""
    records, usual = [], ProgramRecord.__init__

    def noted(record, num_replicas):
        usual(record, num_replicas)
        records.append(record)

    monkeypatch.setattr(ProgramRecord, "__init__", noted)
    return lambda: {each.operation for record in records for each in record.whole}


def arrays(made):
    """What a program made, in NumPy: models and layers become their weights."""
    if isinstance(made, (keras.Layer, keras.optimizers.Optimizer)):
        return [value_on_all_replicas(variable) for variable in made.variables]
    if isinstance(made, keras.callbacks.History):
        return made.history
    if isinstance(made, dict):
        return {name: arrays(value) for name, value in made.items()}
    if isinstance(made, (list, tuple)):
        return [arrays(value) for value in made]
    return made.numpy() if isinstance(made, tf.Tensor) else made


def value_on_all_replicas(variable):
    """A variable's value, which must have the same bits on every replica."""
    held = getattr(variable, "value", variable)
    if held.synchronization == tf.VariableSynchronization.ON_READ:
        return held.numpy()  # the sum of what each of them holds
    first, *others = harness.components(variable)
    for other in others:
        assert first.tobytes() == other.tobytes(), f"`{variable.path}` differs between replicas"
    return first


def made_by(program, replicas=None, is_inside=False):
    """What `program` makes, from the state of a fresh process; or all of it in the scope."""
    harness.start_over()
    one = tf.distribute.get_strategy()
    strategy = one if replicas is None else harness.strategy(replicas)
    with strategy.scope() if is_inside else contextlib.nullcontext():
        return arrays(program.run(strategy))


def cases():
    """Every program once: what `make test` runs on two replicas, the others on three.

    Three share nearly every batch unevenly, so that an even number shows little more. In a cluster
    they all run on its replicas.
    """
    for name in PROGRAMS:
        marks = [pytest.mark.slow]
        replicas = CLUSTER_REPLICAS or (2 if name in FAST else 3)
        if name not in FAST:
            marks.append(pytest.mark.exhaustive)
        if name in TELLING:
            marks.append(pytest.mark.telling)
        yield pytest.param(name, replicas, marks=marks, id=f"{name}-{count_id(replicas)}")


@pytest.mark.parametrize(("name", "replicas"), list(cases()))
def test_a_program_agrees_with_one_device_or_says_that_it_does_not(name, replicas, computed_whole):
    program = PROGRAMS[name]
    if program.batches is None:
        expected = harness.once(lambda: made_by(program))
        harness.assert_close(made_by(program, replicas), expected, program.tolerance)
    else:
        tfdp.verify(program.run, program.batches, strategy=harness.strategy(replicas)).check()
    assert computed_whole() == WHOLE.get(name, set())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", tiers.cases([n for n, each in PROGRAMS.items() if not each.batches], INSIDE)
)
def test_a_program_that_runs_in_the_scope_agrees_with_one_device(name):
    program = PROGRAMS[name]
    expected = harness.once(lambda: made_by(program))
    found = made_by(program, CLUSTER_REPLICAS or 2, is_inside=True)
    harness.assert_close(found, expected, program.tolerance)


def test_there_are_sixty_programs_and_each_says_what_it_does():
    assert len(PROGRAMS) >= 60 and PROGRAMS.keys() >= WHOLE.keys()
    assert all(program.run.__doc__ for program in PROGRAMS.values())
