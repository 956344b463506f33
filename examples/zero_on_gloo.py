"""Makes DeepSpeed's ZeRO 3 wait for its parameters where gloo is the backend, as on a machine without GPUs."""

from typing import Any

import deepspeed


def wait_for_every_gather() -> None:
    """Wait for each gather as it starts; call this after `deepspeed.init_distributed`.

    DeepSpeed 0.19 starts several gathers at once and waits for the last of them only. That is enough for NCCL, which
    runs them in order; gloo runs two at a time, so that a step may read parameters that have not arrived.
    """
    backend = deepspeed.comm.comm.cdb
    gather = backend.all_gather_function

    def gathered(**call: Any) -> Any:
        work = gather(**call)
        if work is not None:
            work.wait()
        return work

    backend.all_gather_function = gathered
