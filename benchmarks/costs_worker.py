"""One side of `benchmarks costs`: compiles a step, and prints what XLA counts of it, as JSON.

python -m benchmarks.costs_worker keras_on_jax mlp 16
"""

import argparse
import json
import os
from typing import Any

SIDES = ("tfdp", "keras_on_jax")

_ADAM = "-adam"

#: Models of `bench.bench_models`, with SGD with momentum unless another optimizer is named.
MODELS = (
    "mlp",
    "small",
    "lstm",
    f"lstm{_ADAM}",
    "transformer",
    f"transformer{_ADAM}",
    "mobilenet",
    "resnet18",
    "resnet50",
)


def build(name: str) -> Any:
    """Returns one of `MODELS`, compiled by Keras."""
    from tfdp.tools.bench.bench_models import build_model

    model = build_model(name.removesuffix(_ADAM), jit_compile=True)
    if name.endswith(_ADAM):
        model.compile("adam", model.loss, jit_compile=True)
    return model


def costs_of_tfdp(name: str, x: Any, y: Any) -> dict[str, float]:
    """Returns the costs of a step under XLAStrategy, on one device."""
    import jax
    import tensorflow as tf

    import tfdp

    strategy = tfdp.XLAStrategy(jax.devices()[:1])
    with strategy.scope():
        model = build(name)
    batch = tuple(tf.TensorSpec(each.shape, each.dtype) for each in (x, y))
    facts = strategy.compile_ahead(model, batch)
    return {"operations": facts.operations, "bytes_accessed": facts.bytes_accessed}


def costs_of_keras_on_jax(name: str, x: Any, y: Any) -> dict[str, float]:
    """Returns the costs of Keras' own step, which is compiled as its trainer does."""
    import jax

    model = build(name)
    model.optimizer.build(model.trainable_variables)
    state = tuple(
        [variable.value for variable in variables]
        for variables in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    )
    step = jax.jit(model.train_step, donate_argnums=0)
    found = step.lower(state, (x, y)).compile().cost_analysis() or {}
    return {"operations": found["flops"], "bytes_accessed": found["bytes accessed"]}


def main() -> None:
    """Prints the costs of one side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("examples", type=int)
    parsed = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    if parsed.side == "keras_on_jax":
        os.environ["KERAS_BACKEND"] = "jax"
    from tfdp.tools.bench.bench_models import random_batch

    x, y = random_batch(parsed.model.removesuffix(_ADAM), parsed.examples)
    costs = {"tfdp": costs_of_tfdp, "keras_on_jax": costs_of_keras_on_jax}
    print(json.dumps(costs[parsed.side](parsed.model, x, y)))


if __name__ == "__main__":
    main()
