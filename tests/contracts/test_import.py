"""`import weighbridge` needs numpy at most, and its public names are what `__all__` says."""

from __future__ import annotations

import ast
import subprocess
import sys

import weighbridge

HEAVY = ("torch", "numba", "transformers", "lightning", "accelerate", "deepspeed", "pyarrow", "matplotlib", "pydantic")


def loaded_after(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return {name.split(".")[0] for name in ast.literal_eval(done.stdout)}


def test_import_loads_nothing_heavy() -> None:
    assert not loaded_after("import weighbridge").intersection((*HEAVY, "numpy"))


def test_a_mean_of_rows_needs_numpy_only() -> None:
    program = "import weighbridge; assert weighbridge.token_mean([[1, 0], [6, 2]]) == 3.0"
    assert not loaded_after(program).intersection(HEAVY)


def test_public_names() -> None:
    for name in weighbridge.__all__:
        assert getattr(weighbridge, name) is not None
    assert set(weighbridge.__all__) <= set(dir(weighbridge))
