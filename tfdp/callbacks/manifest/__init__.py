"""The manifest of a run, `manifest.json`: it tells the run from others and helps to repeat it.

Importing this package, or writing a manifest of no model and no data, loads no TensorFlow.
"""

from tfdp.base.data_fingerprints import fingerprint, fingerprint_arrays
from tfdp.callbacks.manifest.write import write_manifest

__all__ = ["fingerprint", "fingerprint_arrays", "write_manifest"]
