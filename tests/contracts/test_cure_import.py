"""A mean of rows needs numpy and nothing heavier."""

from __future__ import annotations

import subprocess
import sys


def test_a_mean_of_rows_needs_numpy_only() -> None:
    program = (
        "import sys, weighbridge; assert weighbridge.token_mean([[1, 0], [6, 2]]) == 3.0;"
        "print([name for name in ('torch', 'numba', 'pydantic', 'pyarrow', 'click') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
