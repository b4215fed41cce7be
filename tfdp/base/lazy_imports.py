"""The import of a package's public names when each is first used (PEP 562)."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from tfdp.base.hooks import versions


def lazy_names(
    package: dict[str, Any], names: Mapping[str, tuple[str, str | None]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and `__dir__` of a package.

    Args:
      package: The package's `globals()`, with `__all__`; a name that was used is kept there.
      names: For each name its module and the attribute there; None means the module itself.

    >>> get, _ = lazy_names({"__name__": "p", "__all__": ["tau"]}, {"tau": ("math", "tau")})
    >>> get("tau")
    6.283185307179586
    """

    def getattr_(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module_name, attribute = names[name]
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            moved = versions.moved(error)
            if moved is None:
                raise
            raise moved from error
        value = module if attribute is None else getattr(module, attribute)
        package[name] = value
        return value

    return getattr_, lambda: sorted(package["__all__"])
