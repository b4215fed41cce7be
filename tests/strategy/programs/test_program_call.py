"""What is optimized before the first step of a partitioned program, and by which options."""

import harness
import tensorflow as tf

from tfdp.strategy._tensorflow_programs import ConfigProto, context
from tfdp.strategy.programs import program_call


def rewrites(serialized):
    config = ConfigProto()
    config.ParseFromString(serialized)
    return config.graph_options.rewrite_options


def of_program(devices, as_traced=False):
    with harness.graphs_as_traced(as_traced=as_traced):
        return rewrites(program_call.call_options(devices).config_proto_serialized)


def test_on_cpus_a_program_is_rewritten_by_what_gains_there():
    found = of_program(["/device:CPU:0", "/device:CPU:1"])
    assert tuple(found.optimizers) == program_call.ON_CPUS


def test_on_accelerators_all_of_grappler_runs():
    found = of_program(["/device:GPU:0", "/device:CPU:0"])
    assert found == type(found)()


def test_what_the_user_chose_stays():
    found = of_program(["/device:CPU:0"], as_traced=True)
    assert found.disable_meta_optimizer
    assert not found.optimizers


def test_a_call_is_optimized_with_the_options_it_is_made_with():
    with harness.graphs_as_traced(as_traced=False):
        options = program_call.call_options(["/device:CPU:0"])

    traced = tf.function(lambda x: x + 1).get_concrete_function(tf.constant(1))

    @tf.function
    def calling(x):
        before = context().function_call_options
        with program_call.calling_with(options):
            found = traced(x)
        assert context().function_call_options is before
        return found

    graph = calling.get_concrete_function(tf.constant(1)).graph
    (call,) = [each for each in graph.get_operations() if each.type == "PartitionedCall"]
    assert call.get_attr("config_proto") == options.config_proto_serialized
