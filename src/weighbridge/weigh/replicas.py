"""Ranks that hold parts of one model: they were fed the same items, and count as one rank of the data.

Under tensor parallelism ranks 0 and 1, say, share a model, and reduce their gradients with ranks 2 and 3 crosswise: 0
with 2, and 1 with 3. Each of the two groups is a complete data-parallel run, and they are copies of each other. Then
one of them is weighed. That they are copies is not assumed: groups must not overlap, their ranks must have seen the
same tokens and losses in every microbatch, and the weights that they read must agree.
"""

from __future__ import annotations

from dataclasses import replace

from weighbridge.weigh.records import Line, RankRecord, Records

__all__ = ["without_replicas"]

SAME = 1e-4  # relative: losses of one item on two ranks that share a model, and weights


def without_replicas(records: Records) -> tuple[Records, list[str]]:
    """The records of one data-parallel group, its ranks numbered anew, and what to say about it.

    The records themselves, and nothing, where the ranks are one group.
    """
    groups = _groups(records)
    if len(groups) < 2 or not all(_copies(records, groups[0], other) for other in groups[1:]):
        return records, []
    first = groups[0]
    kept = {
        number: replace(records.ranks[rank], rank=number, world_size=len(first)) for number, rank in enumerate(first)
    }
    together = [" and ".join(map(str, ranks)) for ranks in zip(*groups, strict=True)]
    numbers = ", ".join(f"{number} is {rank}" for number, rank in enumerate(first))
    each, many = (" each", "ranks") if len(first) > 1 else ("", "rank")
    note = (
        f"Ranks {'; '.join(together)}{each} hold parts of one model: they were fed the same items. They were weighed "
        f"as {len(first)} {many} of the data (rank {numbers})."
    )
    return Records(kept, records.bystanders, records.replaced), [note]


def _groups(records: Records) -> list[list[int]]:
    """The ranks that reduce gradients with each other, where that makes several groups of one size; else []."""
    ranks = set(records.ranks)
    if len(ranks) != records.world_size:
        return []
    groups = {tuple(sorted(_shares(record))) for record in records.ranks.values()}
    members = [rank for group in groups for rank in group]
    if sorted(members) != sorted(ranks) or len({len(group) for group in groups}) != 1:
        return []
    return [list(group) for group in sorted(groups)]


def _shares(record: RankRecord) -> set[int]:
    """The ranks that this one reduces with: as a wrapper says, or those whose weights it read."""
    if record.shares is not None:
        return set(record.shares)
    found = {record.slot_rank}
    for line in record.steps.values():
        found |= {slot // line["capacity"] for slot, *_ in line["readings"]}
    return found


def _copies(records: Records, one: list[int], other: list[int]) -> bool:
    return all(
        _alike(records.ranks[rank], records.ranks[twin]) for rank, twin in zip(one, other, strict=True)
    ) and _same_weights(records, one, other)


def _alike(record: RankRecord, twin: RankRecord) -> bool:
    """Whether two ranks saw the same tokens, with the same losses, in every microbatch."""
    lines, others = record.microbatches, twin.microbatches
    return len(lines) == len(others) > 0 and all(map(_same_line, lines, others))


def _same_line(line: Line, other: Line) -> bool:
    places = all(line[key] == other[key] for key in ("step", "microbatch", "tokens"))
    pairs = zip(line["loss_sum"], other["loss_sum"], strict=False)
    return places and all(abs(mine - theirs) <= SAME * abs(mine) for mine, theirs in pairs)


def _same_weights(records: Records, one: list[int], other: list[int]) -> bool:
    """Whether two groups read the same weights, step by step, each for its own ranks."""
    for step in set(records.ranks[one[0]].steps) & set(records.ranks[other[0]].steps):
        mine, theirs = _weights(records, one, step), _weights(records, other, step)
        if mine.keys() != theirs.keys():
            return False
        if any(abs(value - theirs[place]) > SAME * abs(value) for place, value in mine.items()):
            return False
    return True


def _weights(records: Records, group: list[int], step: int) -> dict[tuple[int, int], float]:
    """What a group's ranks read together: (number of the rank in the group, slot of the rank) -> weight."""
    found: dict[tuple[int, int], float] = {}
    for rank in group:
        line = records.ranks[rank].steps.get(step, {"readings": []})
        for slot, value, *_ in line["readings"]:
            owner, place = divmod(slot, line["capacity"])
            if owner in group:
                found[group.index(owner), place] = value
    return found
