"""The one seam between weighbridge and whatever carries numbers between ranks.

A transport needs two verbs, add up and gather, and both have a time limit. Everything that weighbridge sends is exact
integers, so an ordinary integer SUM merges it, in any order and in any number of stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from weighbridge.errors import CollectiveError

__all__ = ["Alone", "Collective", "missing_ranks_error", "say_ranks"]


@runtime_checkable
class Collective(Protocol):
    """What a transport can do. Every rank of the group calls the same verbs in the same order.

    Attributes:
        rank: this rank, from 0, within the group.
        world_size: number of ranks in the group.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def sum(self, lanes: Any) -> npt.NDArray[np.int64]:
        """The elementwise int64 sum over ranks of `lanes` [N] (numpy or torch), on the host; `lanes` stays as it was.

        Raises:
            CollectiveError: a rank did not take part within the limit; `missing` names it.
        """
        ...

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, in order of rank; raises as `sum`."""
        ...


class Alone:
    """One process: nothing to bring together."""

    rank = 0
    world_size = 1

    def sum(self, lanes: Any) -> npt.NDArray[np.int64]:
        """A copy of `lanes` [N] on the host."""
        return np.array(lanes.cpu() if hasattr(lanes, "cpu") else lanes, dtype=np.int64)

    def sum_tensor(self, lanes: Any) -> Any:
        """A copy of the torch tensor `lanes` [N] on its device: nothing is copied to the host."""
        return lanes.detach().clone()

    def gather(self, text: str) -> list[str]:
        """`[text]`."""
        return [text]


def say_ranks(ranks: Sequence[int]) -> str:
    """`rank 2`, `ranks 0 and 1`, `ranks 0, 1 and 3`."""
    names = [str(rank) for rank in sorted(ranks)]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def missing_ranks_error(
    missing: Sequence[int], *, rank: int, world_size: int, limit: float, verb: str, detail: str = ""
) -> CollectiveError:
    """The error of a wait that ended without everybody; `missing` is empty where nobody can be named."""
    if missing:
        who = f"{say_ranks(missing)} of {world_size} did not take part in a {verb}"
    else:
        who = f"A {verb} of {world_size} ranks failed, though every rank took part"
    because = f" The transport says: {detail.strip().splitlines()[0]}" if detail.strip() else ""
    return CollectiveError(
        f"{who}, waited for by rank {rank} up to {limit:g} s. Every rank of a group must call the same functions in "
        f"the same order. Look at the log of the ranks named, and start again from a checkpoint.{because}",
        missing=missing,
    )
