"""What a reader of the report must know about a run: what went wrong, and what was done differently."""

from __future__ import annotations

import math

from weighbridge.weigh.records import RankRecord, Records

__all__ = ["comparable", "first_not_finite", "notes", "problems"]


def problems(records: Records, steps: list[int]) -> list[str]:
    """Sentences about what went wrong, each with rank and step."""
    found = [
        *_unweighable(records),
        *_missing_ranks(records),
        *_unequal_microbatches(records, steps),
        *_listed(_not_finite(records)),
        *_exceptions(records),
    ]
    for record in records.replaced:
        found.append(
            f"rank {record.rank} was started again: process {record.pid} was replaced. Its records are left out."
        )
    return found


def _unweighable(records: Records) -> list[str]:
    found = []
    for record in records.bystanders:
        for line in record.others.get("too-old", []):
            found.append(
                f"torch is {line['torch']} in process {record.pid}. Weighing needs torch {line['oldest']} or "
                f"newer. Run: pip install 'torch>={line['oldest']}'"
            )
        for line in record.others.get("unreachable", []):
            found.append(
                f"{line['executable']} can't load weighbridge ({line['error']}). The command's Python must "
                "have weighbridge installed. Install it there, and weigh again."
            )
    return sorted(set(found))


def _missing_ranks(records: Records) -> list[str]:
    missing = sorted(set(range(records.world_size)) - set(records.ranks))
    if not missing:
        return []
    return [
        f"{_ranks(missing)} of {records.world_size} recorded nothing. A weighing needs the records of every rank. "
        "See the command's output for what became of it."
    ]


def _ranks(ranks: list[int]) -> str:
    *others, last = [str(rank) for rank in ranks]
    return f"ranks {', '.join(others)} and {last}" if others else f"rank {last}"


def comparable(records: Records, steps: list[int]) -> bool:
    """True where all ranks have the same number of microbatches in each step."""
    return not _unequal_microbatches(records, steps)


def _unequal_microbatches(records: Records, steps: list[int]) -> list[str]:
    for step in steps:
        by_number: dict[int, list[int]] = {}
        for rank, record in records.ranks.items():
            by_number.setdefault(record.steps[step]["microbatches"], []).append(rank)
        if len(by_number) > 1:
            odd, *others = sorted(by_number.items(), key=lambda item: len(item[1]))
            rest = " and ".join(f"{_ranks(ranks)} recorded {number}" for number, ranks in others)
            return [
                f"{_ranks(odd[1])} of {records.world_size} recorded {odd[0]} microbatches in step {step}, {rest}. "
                f"The weights of step {step} can't be compared. Give every rank the same number of microbatches"
                + (f", or pass --steps {step} to end before that step." if step else ".")
            ]
    return []


def _not_finite(records: Records) -> list[str]:
    lines = [
        (line["step"], line["microbatch"], rank, line)
        for rank, record in records.ranks.items()
        for line in record.microbatches
    ]
    found = []
    for step, microbatch, rank, line in sorted(lines, key=lambda item: item[:3]):  # where it began comes first
        for sequence, (tokens, loss_sum) in enumerate(zip(line["tokens"], line["loss_sum"], strict=True)):
            if tokens and not math.isfinite(loss_sum):
                what = "NaN" if math.isnan(loss_sum) else "infinite"
                found.append(
                    f"the loss is {what} in step {step}, rank {rank}, microbatch {microbatch}, "
                    f"sequence {sequence} ({line['term']})."
                )
    return found


def first_not_finite(records: Records) -> str:
    """Where a loss was first NaN or infinite: in time, then by rank; "" where none was."""
    return next(iter(_not_finite(records)), "")


def _listed(found: list[str]) -> list[str]:
    return found if len(found) <= 8 else [*found[:8], f"{len(found) - 8} more losses are not finite."]


def _exceptions(records: Records) -> list[str]:
    return [
        f"rank {rank} of {records.world_size} ended with {line['message']}"
        for rank, record in records.ranks.items()
        for line in record.others.get("exit", [])
        if line["how"] == "exception"
    ]


def notes(records: Records, steps: list[int]) -> list[str]:
    """Sentences about how the run was weighed."""
    found: list[str] = []
    ranks = list(records.ranks.values())
    last = [record.steps[step] for record in ranks for step in steps[-1:]]
    if any(line.get("compiled") for line in last):
        found.append("torch.compile ran eagerly while weighing.")
    if any(line.get("foreign_steps") for line in last):
        found.append("Another optimizer, over other parameters, stepped too: what it optimizes was not weighed.")
    if any("skipped" in record.others for record in ranks):
        found.append("A gradient scaler skipped a step with infinities; its microbatches were left out.")
    if any("guarded" in record.others for record in ranks):
        found.append(
            "A step was skipped while the tracer's constant was in its loss, as a guard against loss spikes "
            "does. It was left out, the tracer was off from then on, and logged numbers are judged by their "
            "values."
        )
    if any(any(slots_missing(record)) for record in ranks):
        found.append("Some microbatches had no slot left in the probe and were not weighed.")
    within = max((line["within"] for record in ranks for line in record.microbatches), default=0.0)
    if within > 1e-3:
        found.append(
            f"Tokens of one loss call weigh differently (by up to {within:.0%}): the loss is weighted or "
            "transformed after it is computed. The weights shown are means over a row's tokens."
        )
    if any(
        line["slots"] and len(line["tokens"]) == 1
        for record in ranks
        for line in record.microbatches
        if line["content"] is None
    ):
        found.append("No batch dimension showed in the loss call: a microbatch was weighed as one row.")
    found += sorted({line["text"] for record in ranks for line in record.others.get("note", [])})
    return found


def slots_missing(record: RankRecord) -> list[bool]:
    return [line["slots"] is None for line in record.microbatches]
