"""What Python reads first in each process of the tests: its collector looks through less, later.

TensorFlow and Keras make a million objects that stay. To look through them time and again while
they are imported, and again when the process ends, takes a third of what it costs to start one.
`tests/conftest.py` puts this folder on the path of all that tests start.
"""

import atexit
import gc

gc.set_threshold(50_000, 10, 10)
atexit.register(gc.freeze)
