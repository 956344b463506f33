"""Call a function when a module has been imported. Standard library only: it runs in every process of a command.

One finder stands in front of the others. For a name that somebody waits for, it lets the others find the module and
adds one thing to its loading: when the module has run, the waiting functions are called with it.
"""

import importlib.abc
import importlib.machinery
import sys

_waiting = {}  # name of a module -> functions to call with it
_running = set()  # names being looked up by the finder itself


class _Loader(importlib.abc.Loader):
    """The module's own loader, and the waiting functions after it."""

    def __init__(self, loader, name):
        self._loader = loader
        self._name = name

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        # The module must see its own loader: resources, inspection and pickling ask for it.
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        for function in _waiting.pop(self._name, ()):
            function(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in _waiting or name in _running:
            return None
        _running.add(name)
        try:
            spec = _find_by_others(name, path, target)
        finally:
            _running.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader, name)
        return spec


def _find_by_others(name, path, target):
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        if isinstance(finder, _Finder) or find is None:
            continue
        spec = find(name, path, target)
        if spec is not None:
            return spec
    return None


def when_imported(name, function):
    """Call `function(module)` once the module `name` has run: now, if it already has."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        function(module)
        return
    _waiting.setdefault(name, []).append(function)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
