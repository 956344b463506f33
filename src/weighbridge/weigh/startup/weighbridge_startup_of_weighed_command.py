"""Start-up of a weighed process: run the user's sitecustomize, then wait for torch. Standard library only."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

TYPE_CHECKING = False  # typing itself is not worth importing in every process
if TYPE_CHECKING:
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
OLDEST_TORCH = "2.6"


def run_users_sitecustomize() -> None:
    """Run the sitecustomize that this folder hides, if there is one, under its own name."""
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder or os.getcwd()) != HERE]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    import importlib.util  # slow, and only those who have a sitecustomize need it

    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def load_waiter() -> ModuleType:
    """weighbridge.weigh.imports under its own name, loaded by its path: most processes never need the package.

    By hand, because importlib.util and importlib.abc would take longer to import than everything else here.
    """
    path = os.path.join(os.path.dirname(HERE), "imports.py")
    name = "weighbridge.weigh.imports"
    loader = SourceFileLoader(name, path)
    module = type(sys)(name)
    module.__spec__, module.__file__ = ModuleSpec(name, loader, origin=path), path
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def start_weighing(torch: ModuleType) -> None:
    """Called when torch has been imported; a failure is recorded and never stops the user's program."""
    if is_too_old(torch):
        # Weighing itself imports what an old torch does not have.
        note("too-old", torch=str(torch.__version__), oldest=OLDEST_TORCH)
        return
    try:
        from weighbridge.weigh.start import start
    except Exception as error:
        note("unreachable", error=repr(error))
        return
    start()


def is_too_old(torch: ModuleType) -> bool:
    """Whether this torch is older than the oldest that can be weighed; one of an unknown version is not."""
    try:
        major, minor = str(torch.__version__).split("+")[0].split(".")[:2]
        return (int(major), int(minor)) < tuple(int(part) for part in OLDEST_TORCH.split("."))
    except (AttributeError, ValueError):
        return False


def note(kind: str, **fields: str) -> None:
    """Leave a line for the report: this interpreter imported torch, and weighing could not start in it."""
    import json

    folder = os.environ["WEIGHBRIDGE_RECORD"]
    line = {"kind": kind, "pid": os.getpid(), "executable": sys.executable, **fields}
    with open(os.path.join(folder, f"process-{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run() -> None:
    """What sitecustomize calls."""
    if os.environ.get("WEIGHBRIDGE_RECORD"):
        load_waiter().when_imported("torch", start_weighing)
    run_users_sitecustomize()
