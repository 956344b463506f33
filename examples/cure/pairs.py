"""The pairs of programs in this folder: how each is started, what is wrong before, and the diff between its two."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FOLDER", "PAIRS", "Pair"]

FOLDER = Path(__file__).resolve().parent
CONTEXT = 2
PYTHON = ("python",)
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "2")
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2")
MICROBATCHES = "mean-of-microbatch-means"


@dataclass(frozen=True)
class Pair:
    """`NAME_wrong.py` and `NAME_right.py`: the smallest change that makes every token weigh the same.

    Attributes:
        name: what the files begin with.
        launcher: the words before the program in a command line.
        rule: the rule that weighing names in the wrong one's gradient.
        logged: the rule that it names in the loss that the framework logs; "" where the program only prints it.
        packages: whose versions matter.
    """

    name: str
    launcher: tuple[str, ...]
    rule: str
    logged: str = ""
    packages: tuple[str, ...] = ("torch",)

    def command(self, kind: str) -> list[str]:
        """The command that runs one program, from the repository's root; `kind` is "wrong" or "right"."""
        return [*self.launcher, f"examples/cure/{self.name}_{kind}.py"]

    def diff(self) -> list[str]:
        """The unified diff from wrong to right: without file names and docstrings, a line of dots between hunks."""
        before, after = (self._code(kind) for kind in ("wrong", "right"))
        lines = list(difflib.unified_diff(before, after, lineterm="", n=CONTEXT))[3:]
        return [" ..." if line.startswith("@@") else line.rstrip() for line in lines]

    def _code(self, kind: str) -> list[str]:
        text = (FOLDER / f"{self.name}_{kind}.py").read_text(encoding="utf-8")
        return text.split('"""\n', 1)[1].splitlines()


PAIRS = (
    Pair("plain", PYTHON, MICROBATCHES),
    Pair("ddp", TORCHRUN, MICROBATCHES),
    Pair("fsdp2", TORCHRUN, MICROBATCHES),
    Pair("accelerate", ACCELERATE, MICROBATCHES, packages=("accelerate", "torch")),
    Pair("lightning", PYTHON, MICROBATCHES, "last-microbatch-only", ("lightning", "torch")),
    Pair("trainer", TORCHRUN, MICROBATCHES, MICROBATCHES, ("transformers", "accelerate", "torch")),
    Pair("trl", TORCHRUN, "unshifted-count", "unshifted-count", ("trl", "transformers", "torch")),
)
