"""Log directories as a training writes them: noise, warm-up, a late rank, validation."""

import json
import math

import numpy as np

HOUR = 1_790_000_000.0


def plain(value):
    """What stands in the log for a number that JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    return value


def line(**values):
    return json.dumps({key: plain(value) for key, value in values.items()}) + "\n"


def start_line(rank=0, ranks=1, **changed):
    values = {
        "kind": "start",
        "time": HOUR,
        "format": 1,
        "rank": rank,
        "world_size": ranks,
        "host": f"node-{rank // 2}",
        "replicas": 2 * ranks,
        "local_replicas": 2,
        "devices": ["CPU:0", "CPU:1"],
        "gradient_accumulation_steps": 1,
        "topology": "ring",
        "steps_per_execution": 1,
        "jit_compile": False,
        "sample_every": 10,
        "optimizer": "LAMB",
        "parameters": 1_626_442,
        "steps_per_epoch": 60,
        "epochs": 3,
    }
    return line(**values | changed)


def step_line(step, /, **changed):
    values = {"kind": "step", "time": HOUR + step, "step": step, "epoch": 0, "steps": 1}
    return line(**values | {"examples": 64, "seconds": 0.5} | changed)


def write_rank(directory, lines, rank=0):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"rank{rank}.jsonl").write_text("".join(lines))
    return directory


def write_run(
    directory,
    ranks=4,
    epochs=3,
    steps_per_epoch=60,
    batch=256,
    seed=1,
    late_rank=None,
    late_seconds=0.035,
    compute=0.11,
    input_wait=0.004,
    communication=0.012,
    loss_scale=False,
    ended=True,
    **start,
):
    """Writes a run; every fifth step is sampled, the first of all takes seconds to compile,
    and those of later epochs have validation in them.
    """
    random = np.random.default_rng(seed)
    shape = (ranks, epochs * steps_per_epoch)
    computes = compute * random.lognormal(0, 0.04, shape)
    waits = input_wait * random.lognormal(0, 0.5, shape)
    if late_rank is not None:
        computes[late_rank] += late_seconds * random.lognormal(0, 0.1, shape[1])
    arrivals = computes + waits
    first_bucket = arrivals.max(0) + 0.002 - arrivals
    exposed = communication * random.lognormal(0, 0.1, shape) + first_bucket - 0.002
    others = 0.003 * random.lognormal(0, 0.2, shape)
    seconds = (arrivals + exposed).max(0) + others
    seconds[:, 0] += 6.5
    seconds[:, steps_per_epoch::steps_per_epoch] += 1.5  # validation
    losses = 0.25 + 2.1 * np.exp(-np.arange(shape[1]) / (0.25 * shape[1]))
    losses += 0.03 * random.standard_normal(shape[1])
    norms = 0.4 + 3 * np.exp(-np.arange(shape[1]) / 25) * random.lognormal(0, 0.2, shape[1])
    scale = 2.0**15
    lines = [[start_line(r, ranks, epochs=epochs, **start)] for r in range(ranks)]
    clock = HOUR
    for i in range(shape[1]):
        clock += float(seconds[:, i].max())
        epoch, step = i // steps_per_epoch, i + 1
        skipped = int(loss_scale and (i < 3 or random.random() < 0.04))
        scale = scale / 2 if skipped else scale * (2 if step % 50 == 0 else 1)
        for r in range(ranks):
            values = {
                "time": clock,
                "epoch": epoch,
                "examples": batch,
                "seconds": seconds[r, i],
                "examples_per_second": batch / seconds[r, i],
                "input_seconds": waits[r, i],
                "loss": losses[i],
                "bytes_sent": 9_758_652,
            }
            if loss_scale:
                values |= {"loss_scale": scale, "skipped_steps": skipped}
            if i % 5 == 0:
                median = 0.02 + 0.01 * math.exp(-i / 60)
                values |= {
                    "compute_seconds": computes[r, i],
                    "communication_seconds": exposed[r, i],
                    "first_bucket_wait_seconds": first_bucket[r, i],
                    "gradient_norm": math.inf if skipped else norms[i],
                    "trust_ratios": {"min": median / 8, "median": median, "max": 9 * median},
                }
            lines[r].append(step_line(step, **values))
        if step % steps_per_epoch == 0:
            logs = {"loss": losses[i], "accuracy": 1 - losses[i] / 2.7}
            logs |= {"val_loss": losses[i] + 0.07, "val_accuracy": 0.97 - losses[i] / 2.7}
            late = 0 if late_rank is None else late_rank
            for own in lines:
                own.append(line(kind="epoch", time=clock, epoch=epoch, step=step, logs=logs))
                if ranks > 1:
                    own.append(
                        line(
                            kind="straggler",
                            time=clock,
                            epoch=epoch,
                            rank=late,
                            host=f"node-{late // 2}",
                            late_seconds=0.0 if late_rank is None else late_seconds,
                            samples=steps_per_epoch // 5,
                        )
                    )
    for r in range(ranks):
        if ended:
            lines[r].append(line(kind="end", time=clock, step=shape[1], seconds=clock - HOUR))
        write_rank(directory, lines[r], r)
    (directory / "manifest.json").write_text(json.dumps(MANIFEST))
    return directory


def raw_steps(directory, rank=0):
    """The lines of steps as they stand in the file."""
    lines = (directory / f"rank{rank}.jsonl").read_text().splitlines()
    return [values for values in map(json.loads, lines) if values["kind"] == "step"]


def later_steps(directory, rank=0):
    """Those that are not the first of their epoch, of 60 steps each."""
    return [values for values in raw_steps(directory, rank) if values["step"] % 60 != 1]


MANIFEST = {
    "format": 1,
    "created": "2026-09-21T13:33:20+00:00",
    "command": ["python", "train.py", "--epochs", "3", "--name", "two words"],
    "directory": "/home/ada/work",
    "commit": {"revision": "4f0c1d2e9a7b", "modified": False},
    "versions": {"python": "3.11.7", "tfdp": "0.1.0", "tensorflow": "2.21.0", "keras": "3.15.1"},
    "environment": {"TF_NUM_INTEROP_THREADS": "8"},
    "seeds": {"seed": 1, "deterministic": True},
    "data": None,
    "strategy": {
        "name": "DataParallelStrategy",
        "replicas": 8,
        "world_size": 4,
        "devices": ["CPU:0", "CPU:1"],
        "topology": {"name": "ring"},
        "options": {"bucket_bytes": 26214400},
    },
    "model": {
        "name": "fashion_cnn",
        "parameters": 1626442,
        "optimizer": {"name": "lamb", "learning_rate": 0.002, "weight_decay": 0.01},
        "dtype_policy": "mixed_float16",
    },
    "hardware": {"host": "node-0", "cpu": "AMD EPYC 7763", "cores": 2, "gpus": []},
}
