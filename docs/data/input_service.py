"""Costly decoding in other processes: the tf.data service feeds `tfdp.data.pipeline`.

One dispatcher and two workers are started here, as processes of this host; on a cluster each runs
on a host of its own, and the training takes the dispatcher's address. The servers ask for no
password: keep their ports inside your network.

The order. `ShardingPolicy.DYNAMIC` hands out each example to one worker: as long as no worker is
lost, an epoch has each exactly once. (With `OFF` each worker would give all of them.) Which worker
answers first is a matter of chance, so with several workers the order differs from run to run and
from epoch to epoch. Therefore this is for one training process, with any number of replicas:
several would read different orders, and then train on some examples twice and on others never. A
restored state skips as many examples as were trained, but not the same ones.
"""

import multiprocessing
import os
import signal
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "8")

import keras
import numpy as np
import tensorflow as tf

import tfdp

WORKERS = 2
EXAMPLES = 500
BATCH_SIZE = 64
EPOCHS = 2
START_SECONDS = 40  # for a server, to say where it listens
RUN_SECONDS = 120  # for all of it


def end_with_parent():
    """Whatever a server waits for."""
    multiprocessing.parent_process().join()
    os._exit(1)


def serve_dispatcher(addresses):
    """Runs in a process of its own until that is ended, or its parent is no more."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    service = tf.data.experimental.service
    server = service.DispatchServer(service.DispatcherConfig(port=0))  # a port that is free
    addresses.put(server.target.removeprefix("grpc://"))
    server.join()


def serve_worker(started, dispatcher):
    """The same, for a worker, which tells the dispatcher its address itself."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    service = tf.data.experimental.service
    # It would seek a lost dispatcher for an hour, and no other thread of Python runs meanwhile.
    signal.alarm(START_SECONDS)
    server = service.WorkerServer(service.WorkerConfig(dispatcher, port=0))
    signal.alarm(0)
    started.put(os.getpid())
    server.join()


def start(processes, count, target, *arguments):
    """Starts servers, which are added to `processes`; returns what each has to say."""
    spawn = multiprocessing.get_context("spawn")  # TensorFlow must not be forked
    said = spawn.Queue()
    for _ in range(count):
        process = spawn.Process(target=target, args=(said, *arguments), daemon=True)
        processes.append(process)
        process.start()
    return [said.get(timeout=START_SECONDS) for _ in range(count)]


def stop(processes):
    """Ends the servers."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()


def give_up(processes):
    """What waits for a lost dispatcher waits in TensorFlow, which no exception reaches."""
    print(f"Not done after {RUN_SECONDS} s.", flush=True)
    stop(processes)
    os._exit(1)


def served_examples(dispatcher):
    """(number, image, label), decoded and augmented by the workers."""
    random = np.random.default_rng(1)
    labels = np.arange(EXAMPLES) % 4
    # A bright quarter says which class it is; JPEG, as if it came from files.
    pixels = random.integers(0, 100, [EXAMPLES, 2, 2, 24, 24, 3], np.uint8)
    pixels[np.arange(EXAMPLES), labels // 2, labels % 2] += 120
    images = pixels.transpose(0, 1, 3, 2, 4, 5).reshape(EXAMPLES, 48, 48, 3)
    encoded = [tf.io.encode_jpeg(image).numpy() for image in images]

    def decode(number, jpeg, label):
        image = tf.image.resize(tf.io.decode_jpeg(jpeg, channels=3), [72, 72])
        # The workers know of no epoch: the number alone would crop an image alike in each.
        image = tf.image.random_crop(image, [64, 64, 3])
        return number, image / 255, label

    dataset = tf.data.Dataset.from_tensor_slices((np.arange(EXAMPLES), encoded, labels))
    dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.apply(
        tf.data.experimental.service.distribute(
            processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            service=f"grpc://{dispatcher}",
        )
    )
    # What workers send has no length: so it has, and an epoch of another is an error.
    return dataset.apply(tf.data.experimental.assert_cardinality(EXAMPLES))


def check_numbers(dataset):
    """Each example comes exactly once an epoch."""
    for epoch in range(2):
        batches = tfdp.data.pipeline(dataset, BATCH_SIZE, seed=epoch)
        numbers = np.concatenate([number for number, _, _ in batches.as_numpy_iterator()])
        assert sorted(numbers) == list(range(EXAMPLES)), "an example is missing, or there twice"


def train(dataset):
    """On two replicas of one process."""
    batches = tfdp.data.pipeline(
        dataset,
        BATCH_SIZE,
        seed=1,
        map_fn=lambda number, image, label: (image, label),
        shuffle_buffer=EXAMPLES,
    )
    strategy = tfdp.DataParallelStrategy(devices=["CPU:0", "CPU:1"])
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input([64, 64, 3]),
                keras.layers.AveragePooling2D(8),
                keras.layers.Flatten(),
                keras.layers.Dense(4),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(1e-2),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(batches, epochs=EPOCHS, verbose=0).history
    assert batches.state()["epoch"] == EPOCHS
    return history


def main():
    """Starts the servers, checks, trains, and ends the servers."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    processes = []
    timer = threading.Timer(RUN_SECONDS, give_up, [processes])
    timer.daemon = True
    timer.start()
    try:
        (dispatcher,) = start(processes, 1, serve_dispatcher)
        workers = start(processes, WORKERS, serve_worker, dispatcher)
        print(f"dispatcher at {dispatcher}, workers in processes {workers}")
        dataset = served_examples(dispatcher)
        check_numbers(dataset)
        print(f"{EXAMPLES} examples, each exactly once an epoch")
        history = train(dataset)
        print("accuracy", ", ".join(f"{value:.3f}" for value in history["accuracy"]))
    finally:
        timer.cancel()
        stop(processes)


if __name__ == "__main__":
    main()
