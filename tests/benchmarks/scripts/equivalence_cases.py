"""Every case of `benchmarks equivalence` in one process; prints a JSON object, case by case.

The command gives each a process of its own. Here the strategies' collectives are kept apart, and
the cases in which the stock strategy's may fail come last.
"""

import json

import tensorflow as tf

from benchmarks.equivalence_cases import CASES
from benchmarks.equivalence_worker import measure

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
found = {}
for case in CASES:
    tf.distribute.MirroredStrategy._collective_key_base += 1000
    found[case] = measure(case, ["CPU:0", "CPU:1"])
print(json.dumps(found))
