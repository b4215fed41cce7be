"""The same training under Ray Train, which places the ranks and starts them again.

On a Ray cluster: `python ray_train.py --checkpoints /shared/run-1`.
"""

import argparse
import os
import secrets

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def train(config):
    """Trains in each of Ray's workers, which are the ranks."""
    import keras
    import numpy as np

    import tfdp

    # Reads the TF_CONFIG that Ray sets.
    strategy = tfdp.XLAStrategy() if config["xla"] else tfdp.DataParallelStrategy()

    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)  # every rank holds the same data, and trains on its share
    images = rng.normal(size=(512, 16)).astype("float32")
    labels = np.argmax(images[:, :4], axis=1)

    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((16,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(4)]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        *(images, labels),
        batch_size=64,
        epochs=config["epochs"],
        callbacks=[tfdp.callbacks.Checkpoint(config["checkpoints"], every_epochs=1)],
        verbose=0,
    ).history
    if strategy.rank == 0:
        print(f"{len(history['loss'])} epochs, loss {history['loss'][-1]:.6f}")


def main():
    """Asks Ray for the ranks, and waits for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--ranks", default="2", help="how many, or MIN:MAX for Ray to choose")
    parser.add_argument("--checkpoints", required=True, help="a folder that all hosts see")
    parser.add_argument("--xla", action="store_true", help="run by XLA and JAX: GPUs and TPUs")
    arguments = parser.parse_args()

    # What the ranks know each other by, threads for the input, and oneDNN's dense layers, which on
    # x86 before AVX512-VNNI take half the time of those that TensorFlow computes without.
    variables = {
        "TFDP_SECRET": secrets.token_hex(32),
        "TF_NUM_INTEROP_THREADS": "8",
        "TF_ENABLE_ONEDNN_OPTS": "1",
    }
    ray.init(runtime_env={"env_vars": variables})
    folder = os.path.abspath(arguments.checkpoints)
    config = {"epochs": arguments.epochs, "checkpoints": folder, "xla": arguments.xla}
    ranks = tuple(map(int, arguments.ranks.split(":")))
    trainer = TensorflowTrainer(
        train,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=ranks if ranks[1:] else ranks[0]),
        run_config=RunConfig(
            storage_path=os.path.join(folder, "ray"),
            failure_config=FailureConfig(max_failures=3),  # restarts of all ranks
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
