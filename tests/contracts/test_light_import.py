"""`import weighbridge` loads nothing heavy, and what is exported is what is there."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import weighbridge

HEAVY = ("torch", "pydantic", "click", "rich", "matplotlib", "jinja2", "psutil", "transformers", "jax")
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(weighbridge.__path__, "weighbridge.")
    if ".startup" not in name and ".mechanisms" not in name
]


def test_import_loads_nothing_heavy() -> None:
    code = f"import sys, weighbridge; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom weighbridge.cli import main\nsys.argv[1:] = ['--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'pydantic', 'matplotlib', 'numpy', 'rich') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip().endswith("[]")


@pytest.mark.parametrize(
    ("absent", "module", "extra"),
    [
        ("torch", "weighbridge.training", "torch"),
        ("torch", "weighbridge.integrations.transformers", "transformers"),
        ("torch", "weighbridge.integrations.lightning", "lightning"),
        ("lightning", "weighbridge.integrations.lightning", "lightning"),
    ],
)
def test_a_missing_extra_is_one_sentence(absent: str, module: str, extra: str) -> None:
    code = (
        f"import sys, importlib; sys.modules[{absent!r}] = None\nfrom weighbridge.errors import MissingExtra\n"
        f"try:\n    importlib.import_module({module!r})\nexcept MissingExtra as error:\n    print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.endswith(f"needs {extra}, which is not installed. Run: pip install 'weighbridge[{extra}]'\n")


@pytest.mark.parametrize("name", MODULES)
def test_all_lists_what_is_there(name: str) -> None:
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", []):
        assert hasattr(module, exported), f"{name}.__all__ lists {exported}, which is not there"


def test_public_names() -> None:
    for exported in weighbridge.__all__:
        assert callable(getattr(weighbridge, exported))
