"""Start-up of a weighed process: run the user's sitecustomize, then wait for torch. Standard library only."""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run_users_sitecustomize():
    """Run the sitecustomize that this folder hides, if there is one, under its own name."""
    elsewhere = [folder for folder in sys.path if os.path.abspath(folder or os.getcwd()) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def load_waiter():
    """weighbridge.weigh.imports under its own name, loaded by its path: most processes never need the package."""
    path = os.path.join(os.path.dirname(HERE), "imports.py")
    spec = importlib.util.spec_from_file_location("weighbridge.weigh.imports", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def start_weighing(torch):
    """Called when torch has been imported; a failure is recorded and never stops the user's program."""
    del torch
    try:
        from weighbridge.weigh.start import start
    except Exception as error:
        note_unreachable(error)
        return
    start()


def note_unreachable(error):
    """Leave a line for the report: this interpreter imported torch, and weighing could not start in it."""
    import json

    folder = os.environ["WEIGHBRIDGE_RECORD"]
    line = {"kind": "unreachable", "pid": os.getpid(), "executable": sys.executable, "error": repr(error)}
    with open(os.path.join(folder, f"process-{os.getpid()}.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def run():
    """What sitecustomize calls."""
    if os.environ.get("WEIGHBRIDGE_RECORD"):
        load_waiter().when_imported("torch", start_weighing)
    run_users_sitecustomize()
