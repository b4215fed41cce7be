"""What tfdp puts in the place of functions of Keras, TensorFlow and Python, and takes back.

`import tfdp` changes nothing: the first strategy puts the hooks in place. `installed` lists them,
`remove` takes them back. Each hook changes nothing but under a strategy of tfdp.
"""

from tfdp.hooks.private import Attribute, method
from tfdp.hooks.registry import (
    REGISTERED,
    Hook,
    cover,
    function,
    hook,
    install,
    installed,
    put,
    relied_on,
    remove,
    replaced,
)

__all__ = [
    "REGISTERED",
    "Attribute",
    "Hook",
    "cover",
    "function",
    "hook",
    "install",
    "installed",
    "method",
    "put",
    "relied_on",
    "remove",
    "replaced",
]
