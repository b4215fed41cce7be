"""What is read of compiled programs, held against programs of JAX whose content is known."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
facts = pytest.importorskip("tfdp.strategy.xla.compile_facts")


def compiled(function, **options):
    """A function of an array of 8 x 16 whose rows are cut, compiled for four devices."""
    sharding = jax.sharding
    mesh = sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    cut = sharding.NamedSharding(mesh, sharding.PartitionSpec("x"))
    whole = sharding.NamedSharding(mesh, sharding.PartitionSpec())
    jitted = jax.jit(function, in_shardings=cut, out_shardings=whole, **options)
    return jitted.lower(jax.ShapeDtypeStruct((8, 16), np.float32)).compile()


def test_a_sum_over_the_rows_is_one_all_reduce_of_a_row():
    found = facts.of(compiled(lambda x: x.sum(0)), {}, 0)
    assert found.collectives == {"all-reduce": 1}
    assert found.bytes_moved == 16 * 4
    assert not found.host_transfers


def test_a_whole_array_of_parts_is_one_all_gather_of_it():
    found = facts.of(compiled(lambda x: x * 2), {}, 0)
    assert found.collectives == {"all-gather": 1}
    assert found.bytes_moved == 8 * 16 * 4


def test_parts_of_one_collective_are_counted_once():
    alone = "  %a = f32[8,4]{1,0:T(8,128)} all-gather(%b), channel_id=3, dimensions={0}"
    part = f'{alone}, frontend_attributes={{chain_id="0"}}'
    other = part.replace("id=3", "id=4")
    for text, count in (([part, part], 1), ([part, part, other], 2), ([alone, alone], 2)):
        assert facts._collectives("\n".join(text)) == {
            "all-gather": ["f32[8,4]{1,0:T(8,128)}"] * count
        }


def test_a_callback_is_a_transfer_to_the_host():
    def function(x):
        jax.debug.callback(print, x)
        return x.sum(0)

    (target,) = facts.of(compiled(function), {}, 0).host_transfers
    assert "callback" in target


@pytest.mark.parametrize("kind", ["infeed", "outfeed", "send", "recv"])
def test_what_moves_between_host_and_chip_is_named(kind):
    line = f"  %a = (f32[], token[]) {kind}(%b), channel_id=1, is_host_transfer=true"
    assert facts._host_transfers(line, ()) == (kind,)
    assert not facts._host_transfers("  %a = f32[] add(%send, %recv)", ())
    assert not facts._host_transfers("  %a = (f32[], token[]) send(%b), channel_id=1", ())


def test_a_result_in_the_host_s_memory_is_named():
    line = "  %a = (f32[8]{0:T(128)S(5)}, f32[8]{0}, u32[]) copy-start(%b)"
    assert facts._host_transfers(line, ()) == ("host memory",)
    assert not facts._host_transfers(line.replace("S(5)", "S(1)"), ())
