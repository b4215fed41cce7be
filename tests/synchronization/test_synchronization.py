"""What synchronizations take, and what they say of what they do not."""

import keras
import numpy as np
import pytest

import tfdp
from tfdp.strategy import option_checks
from tfdp.synchronization import Asynchronous, BackupWorkers, Delayed, DiLoCo, Gossip, LocalSGD

DEVICES = ["CPU:0"]


@pytest.mark.parametrize("every", [0, -1, 2.0, True, None, "10"])
@pytest.mark.parametrize("kind", [LocalSGD, DiLoCo, Asynchronous])
def test_a_round_has_a_whole_number_of_updates(kind, every):
    with pytest.raises(ValueError, match=rf"`every` of {kind.__name__} must be a whole number"):
        kind(every)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None])
def test_a_delay_is_a_whole_number_of_updates(steps):
    with pytest.raises(ValueError, match=r"`steps` of Delayed must be a whole number.*Delayed\(\)"):
        Delayed(steps)
    assert Delayed(2).describe() != Delayed().describe()


@pytest.mark.parametrize("backups", [0, -1, 1.5, True, None])
def test_the_ranks_that_are_dropped_are_a_whole_number(backups):
    with pytest.raises(
        ValueError, match=r"`backups` of BackupWorkers must be a whole number of ra"
    ):
        BackupWorkers(backups)
    assert BackupWorkers(2).describe() != BackupWorkers(1).describe()


@pytest.mark.parametrize("count", [1, 2])
def test_replicas_of_one_process_are_one_rank_which_is_not_dropped(count):
    devices = [f"CPU:{index}" for index in range(count)]
    with pytest.raises(ValueError, match=r"must be left.*BackupWorkers\(backups=1\).*is one rank"):
        tfdp.DataParallelStrategy(devices, synchronization=BackupWorkers(1))


def test_a_rank_that_is_dropped_has_one_replica_and_an_engine_that_goes_on():
    check = option_checks.check_ranks
    with pytest.raises(ValueError, match=r"one replica.*2 replicas.*-n 6 --engine mpi"):
        check(BackupWorkers(1), 3, 2, "mpi")
    with pytest.raises(ValueError, match=r"need MPI's engine.*TensorFlow's engine, in whose"):
        check(BackupWorkers(1), 3, 1, "tensorflow")
    check(BackupWorkers(2), 3, 1, "mpi")
    check(Delayed(), 1, 2, "tensorflow")


@pytest.mark.parametrize("staleness", [0, -1, 2.0, True, None])
def test_ranks_may_be_a_whole_number_of_rounds_apart(staleness):
    with pytest.raises(ValueError, match=r"`staleness` of Asynchronous must be .* LocalSGD\(every"):
        Asynchronous(2, staleness)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("outer_learning_rate", value) for value in (0, -1.0, True, "1", float("nan"))],
        *[("outer_momentum", value) for value in (1, 1.5, -0.1, False, None, float("inf"))],
    ],
)
def test_homes_of_weights_have_numbers_in_their_range(name, value):
    with pytest.raises(ValueError, match=rf"`{name}` of Asynchronous must be a number .* received"):
        Asynchronous(2, **{name: value})
    assert Asynchronous(2, **{name: 0.5}).describe() != Asynchronous(2).describe()


@pytest.mark.parametrize("steps", [-1, 0.5, None])
def test_a_warm_up_has_a_whole_number_of_updates(steps):
    with pytest.raises(ValueError, match="`warmup_steps` of LocalSGD must be a whole number"):
        LocalSGD(2, warmup_steps=steps)


def test_an_outer_optimizer_is_made_by_a_function():
    with pytest.raises(TypeError, match="must be a function that makes the optimizer"):
        DiLoCo(2, keras.optimizers.SGD(0.1))
    with pytest.raises(TypeError, match=r"must return a new.*returned 0\.7"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=DiLoCo(2, lambda: 0.7))


def test_a_description_tells_outer_optimizers_apart():
    ours, other = (
        DiLoCo(2, lambda rate=rate: keras.optimizers.SGD(rate)).describe() for rate in (0.7, 0.5)
    )
    assert ours != other
    assert ours == DiLoCo(2, lambda: keras.optimizers.SGD(0.7)).describe()
    assert DiLoCo(2).describe()["outer_optimizer"]["nesterov"] == "True"


def test_only_objects_of_the_package_are_taken():
    with pytest.raises(TypeError, match=r"must be an object of `tfdp\.synchronization`.*10"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=10)


def test_of_synchronizations_diloco_alone_takes_a_compression():
    cast = tfdp.compression.Cast("bfloat16")
    for synchronization in (LocalSGD(2), Gossip()):
        with pytest.raises(ValueError, match=r"DiLoCo alone.*SGD\(1\.0\)\), which is LocalSGD"):
            tfdp.DataParallelStrategy(DEVICES, synchronization=synchronization, compression=cast)
    with pytest.raises(ValueError, match=r"`Delayed` sends whole gradients.*Delayed.*Cast"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=Delayed(), compression=cast)
    with pytest.raises(ValueError, match=r"`BackupWorkers` drops gradients.*BackupWorkers.*Cast"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=BackupWorkers(1), compression=cast)
    with pytest.raises(ValueError, match=r"`Asynchronous` sends changes of weights.*Asynchr.*Cast"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=Asynchronous(2), compression=cast)
    own = tfdp.compression.MomentumCorrection(tfdp.compression.TopK(0.1))
    with pytest.raises(ValueError, match="must be the outer optimizer's"):
        tfdp.DataParallelStrategy(DEVICES, synchronization=DiLoCo(2), compression=own)


@pytest.mark.parametrize("shard", ["optimizer", "gradients", "parameters"])
def test_no_synchronization_goes_with_a_shard(shard):
    reasons = {
        LocalSGD(2): "one set of weights",
        Delayed(): "own terms of",
        BackupWorkers(1): "no rank waits",
        Asynchronous(2): "each rank trains by itself",
    }
    for synchronization, why in reasons.items():
        with pytest.raises(ValueError, match=rf"{why}.*Received '{shard}' and .*leave one of them"):
            tfdp.DataParallelStrategy(
                ["CPU:0", "CPU:1"], synchronization=synchronization, shard=shard
            )


def test_a_compiled_strategy_has_no_synchronization():
    for synchronization in (Delayed(), BackupWorkers(1), LocalSGD(2)):
        with pytest.raises(ValueError, match=rf"must be None.*{type(synchronization).__name__}"):
            tfdp.XLAStrategy(synchronization=synchronization)


def test_no_optimizer_is_made_before_the_processes_have_joined():
    def made():
        raise AssertionError("its variables would start TensorFlow")

    option_checks.check_synchronization(DiLoCo(2, made), tfdp.compression.Cast("bfloat16"))


def test_an_outer_optimizer_is_there_where_it_is_said():
    for synchronization in (LocalSGD(2), DiLoCo(2), Gossip()):
        made = synchronization.make_outer_optimizer()
        assert synchronization.has_outer_optimizer == (made is not None)


def test_a_graph_has_a_known_name():
    for graph in ("star", None, ["ring"]):
        with pytest.raises(ValueError, match='must be "exponential" or "ring", but received'):
            Gossip(graph)


def test_fragments_are_whole_and_have_an_update_each():
    for fragments in (0, 1.5, True):
        with pytest.raises(ValueError, match="`fragments` of DiLoCo must be a whole number"):
            DiLoCo(4, fragments=fragments)
    with pytest.raises(ValueError, match=r"received fragments=5 and every=4\. Use at most"):
        DiLoCo(4, fragments=5)


@pytest.mark.parametrize("overlap", [1, 1.5, -0.1, True, "0.5", float("nan")])
def test_an_overlap_is_the_weight_of_a_replicas_own(overlap):
    with pytest.raises(ValueError, match=r"`overlap` of DiLoCo must be the weight.*overlap=0\.5"):
        DiLoCo(4, overlap=overlap)
    assert DiLoCo(4, overlap=0).describe() != DiLoCo(4).describe()


def test_fragments_have_variables():
    strategy = tfdp.DataParallelStrategy(DEVICES, synchronization=DiLoCo(9, fragments=3))
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        with pytest.raises(ValueError, match=r"Each fragment must have a variable.*has 2, and"):
            keras.optimizers.SGD(0.1).build(model.trainable_variables)
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"Each fragment must have a variable.*has 2, and"):
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("graph", ["exponential", "ring"])
def test_mixings_keep_the_mean_and_come_to_it(graph, count):
    mixings = Gossip(graph).mixings(count)
    product = np.eye(count)
    for distances in mixings:
        assert len({d % count for d in distances} - {0}) == len(distances)
        matrix = np.eye(count)
        for distance in distances:
            matrix += np.roll(np.eye(count), distance, axis=0)
        matrix /= 1 + len(distances)
        np.testing.assert_allclose(matrix.sum(0), 1)
        np.testing.assert_allclose(matrix.sum(1), 1)
        product = matrix @ product
    if graph == "exponential" and count & (count - 1) == 0:
        np.testing.assert_allclose(product, 1 / count)
    np.testing.assert_allclose(np.linalg.matrix_power(product, 400), 1 / count, atol=1e-6)


def test_a_strategy_describes_its_synchronization():
    strategy = tfdp.DataParallelStrategy(DEVICES, synchronization=LocalSGD(2))
    assert strategy.describe()["options"]["synchronization"] == {"name": "LocalSGD", "every": 2}
