"""What a process can say of itself: its rank, the code that is running, the libraries it has loaded."""

from __future__ import annotations

import os
import sys

import torch

__all__ = ["call_site", "in_backward", "loaded_versions", "place"]


def place() -> tuple[int, int]:
    """Rank and world size: of the default process group; before it stands, what the launcher said; else one of one."""
    group = torch.distributed
    if group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return 0, 1


def loaded_versions() -> dict[str, str]:
    """Versions of the training libraries that this process has imported."""
    names = ("torch", "transformers", "accelerate", "lightning", "pytorch_lightning", "trl", "peft", "deepspeed")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return {name: str(version) for name, version in found.items() if version}


def in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def call_site() -> str:
    """file:line of the nearest frame outside torch and weighbridge."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if (
            f"{os.sep}torch{os.sep}" not in name
            and f"{os.sep}weighbridge{os.sep}weigh" not in name
            and not name.endswith(f"{os.sep}weighbridge{os.sep}marking.py")
        ):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
