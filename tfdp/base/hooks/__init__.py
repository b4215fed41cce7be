"""The hooks: functions that tfdp puts in the place of those of Keras, TensorFlow and Python.

`import tfdp` changes nothing: the first strategy puts the hooks in place. `installed` lists them,
and `remove` takes them back. Outside of a strategy of tfdp a hook calls the original function; only
the hooks that let `fit` take a pipeline act there as well.
"""

from tfdp.base.hooks.hook_registry import (
    cover,
    function,
    hook,
    install,
    installed,
    put,
    relied_on,
    remove,
    replaced,
    users,
)
from tfdp.base.hooks.private_names import Attribute, method
