"""Kills a rank of `tfdp run` once, and keeps which functions of tfdp are called, when and where.

It is the launcher, the supervisor of each rank and the ranks, which it starts in this order. The
files are `launcher.calls`, `supervisor-0.calls`, ... and `rank-0.calls` in the folder that is the
first argument, with the time, the thread and the function in each line.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time

FOLDER = "TFDP_TESTS_FOLDER"
SUPERVISOR = "TFDP_TESTS_SUPERVISOR"  # the path of tfdp's own

calls = []


def follow(package):
    """Notes all calls from now on, in this thread and in those that start later."""

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package):
            name = f"{code.co_filename[len(package) :].removesuffix('.py')}:{code.co_name}"
            calls.append((time.monotonic(), threading.current_thread().name, name))

    threading.setprofile(note)
    sys.setprofile(note)


def keep(name):
    """Writes the calls that were noted."""
    sys.setprofile(None)
    with open(os.path.join(os.environ[FOLDER], f"{name}.calls"), "w") as file:
        for at, thread, called in list(calls):
            file.write(f"{at} {thread.replace(' ', '-')} {called}\n")


def launch(folder):
    """Runs two ranks, and both again after a failure."""
    import tfdp
    from tfdp.cluster.launch import rank_supervisor
    from tfdp.tools.cli import main

    os.environ.update({FOLDER: folder, SUPERVISOR: rank_supervisor.__file__})
    rank_supervisor.__file__ = __file__  # which a supervisor is started by
    follow(os.path.dirname(tfdp.__file__) + os.sep)
    code = main(["run", "-n", "2", "--max-restarts", "1", "--timeout", "280", __file__])
    keep("launcher")
    sys.exit(code)


def supervise():
    """Is tfdp's supervisor, and follows it."""
    path = os.environ[SUPERVISOR]
    follow(path.removesuffix(os.path.join("cluster", "launch", "rank_supervisor.py")))
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        if os.environ["TFDP_RESTART_COUNT"] == "0":
            keep(f"supervisor-{rank()}")


def rank():
    """The number of this rank."""
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def train():
    """Trains; rank 1 is killed where rank 0 waits for it in a collective."""
    from tfdp.cluster.rank_status import tell

    if os.environ["TFDP_RESTART_COUNT"] != "0":
        tell(made=True)
        return
    import lean

    lean.import_keras()
    import keras
    import numpy as np

    import tfdp
    from tfdp.strategy import process_groups

    class Killed(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if rank() == 0 or batch != 2:
                return
            (processes,) = process_groups._met
            begun = processes.progress().begun
            signs = processes.board.signs  # of rank 0 there may be none yet
            while 0 not in (seen := signs()) or seen[0][1]["begun"] <= begun:
                time.sleep(0.05)
            with open(os.path.join(os.environ[FOLDER], "killed"), "w") as file:
                file.write(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)

    def show(*error):
        keep(f"rank-{rank()}")
        sys.__excepthook__(*error)

    sys.excepthook = show  # the last to hear of an error: tfdp's own are put around it
    follow(os.path.dirname(tfdp.__file__) + os.sep)
    with tfdp.DataParallelStrategy(timeout_seconds=200).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones([64, 3], "float32")
    model.fit(x, x[:, :1], batch_size=4, epochs=2000, verbose=0, callbacks=[Killed()])


if len(sys.argv) == 1:
    train()
elif sys.argv[1].isdecimal():
    supervise()
else:
    launch(sys.argv[1])
