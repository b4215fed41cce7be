"""`manifest.json`: what a run was, so that it can be told from others and made again.

Importing this package, and writing a manifest of no model and no data, loads no TensorFlow.
"""

from tfdp.manifest.fingerprints import fingerprint, fingerprint_arrays
from tfdp.manifest.write import write_manifest

__all__ = ["fingerprint", "fingerprint_arrays", "write_manifest"]
