"""Call a function when a module has been imported. Standard library only: it runs in every process of a command.

One finder stands in front of the others. For a name that somebody waits for, it lets the others find the module and
adds one thing to its loading: when the module has run, the waiting functions are called with it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself is not worth importing in every process
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_waiting: dict[str, list[Callable[[ModuleType], object]]] = {}  # name of a module -> functions to call with it
_running: set[str] = set()  # names being looked up by the finder itself


class _Loader:
    """The module's own loader, and the waiting functions after it."""

    def __init__(self, loader: Loader, name: str) -> None:
        self._loader = loader
        self._name = name

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)  # who looks a module up before it is imported may ask for its source

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must see its own loader: resources, inspection and pickling ask for it.
        assert module.__spec__ is not None
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for function in _waiting.pop(self._name, ()):
            function(module)


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _waiting or name in _running:
            return None
        _running.add(name)
        try:
            spec = _find_by_others(name, path, target)
        finally:
            _running.discard(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, name)  # type: ignore[assignment]  # importlib.abc is slow to import
        return spec


def _find_by_others(name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if isinstance(finder, _Finder) or find is None:
            continue
        spec: ModuleSpec | None = find(name, path, target)
        if spec is not None:
            return spec
    return None


def when_imported(name: str, function: Callable[[ModuleType], object]) -> None:
    """Call `function(module)` once the module `name` has run: now, if it already has."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        function(module)
        return
    _waiting.setdefault(name, []).append(function)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
