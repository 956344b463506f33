"""The verdict on one term of the loss in the gradient.

A term that is a loss of tokens is judged by the weight of each token, relative to what the objective asks for. A term
that is one number a microbatch (an auxiliary loss of a router) has no tokens to compare: the sum of its weights is
its coefficient in the step's loss, and that is judged, if the user declared what it should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from weighbridge.factors import factor_table, joined_names
from weighbridge.matching import Drift, Explanation, Tier, match
from weighbridge.objectives import Objective
from weighbridge.outcome import PieceWeight, Precision, Term, Verdict
from weighbridge.piece_weights import piece_weights
from weighbridge.pieces import Table
from weighbridge.readings import Clip, WeighedTerm
from weighbridge.rules import rule_of
from weighbridge.sums import Flags, Floats, Sums

__all__ = ["Context", "judge_term"]

NAMED_FROM = 16  # times `right_within`: a rule that needs no free number may be called from here on
_NONE = "no gradient was read"
_MASKED = "every label was masked: nothing was counted"


@dataclass(frozen=True)
class Context:
    """What the terms of one reading share: the band, the clips, and the main term's tables by step."""

    objective: Objective
    precision: Precision
    epsilon: float
    clips: Sequence[Clip]
    main_tables: Sequence[Table]
    alone: bool


@dataclass(frozen=True)
class _Reading:
    """The weights of one token [rows] over all steps that have any, beside what is right."""

    tables: tuple[Table, ...]
    sums: Sums
    item: Floats
    right: Floats

    @property
    def relative(self) -> Floats:
        """Weight relative to the objective's [rows]; NaN where nothing was read."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.sums.n > 0, self.item / self.right, np.nan)


def judge_term(term: WeighedTerm, context: Context, *, main: bool) -> Term:
    """The verdict on one term; `main` says that it is the first one of its step."""
    if term.coefficient == 0:
        return _switched_off(term)
    if term.scalar:
        return _judge_scalar(term, context)
    tables = tuple(
        table for table in term.tables if np.any(np.isfinite(table.columns.weight) & (table.columns.mass > 0))
    )
    if not tables:
        return _nothing(term)
    sums = Sums([table.columns for table in tables])
    weight = np.concatenate([table.columns.weight for table in tables])
    coefficient = term.coefficient if term.coefficient is not None else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        item = np.where(sums.n > 0, weight / sums.n, np.nan) / coefficient
    reading = _Reading(tables, sums, item, context.objective.formula.of(sums))
    fits = _explanations(reading, context)
    found = _verdict(term, reading, fits, context)
    if term.coefficient is None and not context.alone:
        found = _undeclared(found, reading, fits, context, main=main)
    return _with_gaps(found, term, reading, weight)


def _nothing(term: WeighedTerm) -> Term:
    rows = [row for table in term.tables for row in table.rows]
    if rows and not any(row.mass > 0 for row in rows):
        reason = _MASKED
    elif any(row.weight is not None and np.isnan(row.weight) for row in rows):
        reason = "the gradient is NaN: no weight could be read"
    else:
        reason = _NONE
    pieces = [piece for table in term.tables for piece in piece_weights(table, np.full(len(table.rows), np.nan))]
    return Term(
        name=term.name,
        verdict=Verdict.INCONCLUSIVE,
        reason=reason,
        coefficient=term.coefficient,
        scalar=term.scalar,
        pieces=pieces,
    )


def _switched_off(term: WeighedTerm) -> Term:
    """The verdict on a term that was declared to have no part in the loss."""
    weights = np.concatenate([np.zeros(1), *[table.columns.weight for table in term.tables]])
    off = not np.any(np.nan_to_num(weights) != 0)
    rule = None if off else rule_of("scaled")
    return Term(
        name=term.name,
        scalar=term.scalar,
        coefficient=0.0,
        verdict=Verdict.RIGHT if off else Verdict.WRONG,
        rule=rule.id if rule else None,
        story=rule.story if rule else "",
        remedy=rule.remedy if rule else "",
        reason="its coefficient was declared as 0" + ("" if off else ", and it has weight in the gradient"),
    )


def _explanations(reading: _Reading, context: Context) -> list[Explanation]:
    """What fits when only exact zeros count as lost; if that explains little, when noise counts as zero too."""
    read = (reading.sums.n > 0) & np.isfinite(reading.item)
    drifts = _clip_drifts(reading.tables, context.clips)
    exact, noisy = (
        match(
            reading.item,
            reading.sums,
            objective=context.objective,
            read=read,
            floor=floor,
            tolerance=context.precision.right_within,
            drifts=drifts,
        )
        for floor in (0.0, min(context.epsilon, 1e-6))
    )
    return noisy if noisy and (not exact or noisy[0].tier < exact[0].tier) else exact


def _clip_drifts(tables: Sequence[Table], clips: Sequence[Clip]) -> list[Drift]:
    """What clips inside the accumulation do to the microbatches before them."""
    inside = [
        (index, clip)
        for index, table in enumerate(tables)
        for clip in clips
        if clip.step == table.step and clip.microbatches < table.microbatches
    ]

    def scale(sums: Sums) -> Floats:
        factors = np.ones_like(sums.n)
        for index, clip in inside:
            earlier = (sums.table == index) & (sums.rank == clip.rank) & (sums.microbatch < clip.microbatches)
            factors[earlier] *= clip.factor
        return factors

    return [("clipped-inside-accumulation", "clip factor of earlier microbatches", scale)] if inside else []


def _verdict(term: WeighedTerm, reading: _Reading, fits: list[Explanation], context: Context) -> Term:
    relative, precision = reading.relative, context.precision
    deviation = float(np.nanmax(np.abs(relative - 1)))
    best = fits[0] if fits else None
    verdict, reason = _decide(best, deviation, precision)
    rule = rule_of(best.rule if best else "unexplained")
    if best and best.rule != "scaled" and best.tier is not Tier.OBJECTIVE:
        reason = _joined(_described(best, reading, context.objective), reason)
    if best is None:
        reason = _joined(_step_by_step(reading, precision), reason)
    right = best is not None and best.tier is Tier.OBJECTIVE
    return Term(
        name=term.name,
        verdict=verdict,
        rule=rule.id,
        coefficient=term.coefficient,
        factor=best.factor if best else None,
        factor_name=best.factor_name if best else None,
        indistinguishable=_others(fits),
        story=rule.story,
        remedy="" if right else rule.remedy,
        reason=reason,
        pieces=_pieces(reading, relative),
        precision=precision,
        observed_coefficient=1.0 if right and not context.alone and term.coefficient is None else None,
    )


def _decide(best: Explanation | None, deviation: float, precision: Precision) -> tuple[Verdict, str]:
    if best is not None and best.tier is Tier.OBJECTIVE:
        return Verdict.RIGHT, ""
    named = best is not None and best.tier <= Tier.DUPLICATED
    wrong_from = min(NAMED_FROM * precision.right_within, precision.wrong_from) if named else precision.wrong_from
    if deviation >= wrong_from:
        return Verdict.WRONG, ""
    return Verdict.INCONCLUSIVE, (
        f"the largest deviation of a relative weight from 1 is {deviation:.2g}: more than "
        f"the {precision.right_within:.2g} that rounding explains, less than the "
        f"{wrong_from:.2g} from which on it is called wrong"
    )


def _others(fits: list[Explanation]) -> list[str]:
    """Ids of the other rules that fit as well as the first, assuming no more than it does."""
    if not fits:
        return []
    first = fits[0].tier
    ids = [
        fit.rule
        for fit in fits
        if fit.tier == first or max(fit.tier, first) <= Tier.PARTIAL
        if (fits[0].rule, fit.factor_name) != ("padded-length-mean", "N/sum T")
    ]  # one thing under two names
    return [rule for rule in dict.fromkeys(ids) if rule != fits[0].rule]


def _described(best: Explanation, reading: _Reading, objective: Objective) -> str:
    """What the rule's story leaves open: the base it is combined with, and which pieces it concerns."""
    if best.multiples is not None:
        return f"counted more than once: {_places(reading, best.multiples > 1)}"
    text = f"the weight of a token is {best.text}"
    if best.factor_name or best.factor is not None:
        name = best.factor_name.split(", or ")[0] if best.factor_name else format(best.factor, ".6g")
        text += f" times {name}"
    if best.rule != best.base and best.base != objective.rule:
        text += f" ({best.rule} combined with {best.base})"
    if best.rule in ("dropped-pieces", "single-rank-only"):
        lost = (reading.sums.n > 0) & (np.abs(reading.relative) < 1e-6)
        text += f"; lost: {_places(reading, lost)}" if lost.any() else ""
    return text


def _step_by_step(reading: _Reading, precision: Precision) -> str:
    """Which steps are right by themselves, where some are and some are not."""
    off = np.zeros(reading.sums.tables)
    np.maximum.at(off, reading.sums.table, np.nan_to_num(np.abs(reading.relative - 1)))
    good = [table.step for table, worst in zip(reading.tables, off, strict=True) if worst <= precision.right_within]
    bad = [table.step for table in reading.tables if table.step not in good]
    if not good or not bad:
        return ""
    return f"step {', '.join(map(str, good))} right by itself, step {', '.join(map(str, bad))} not"


def _places(reading: _Reading, rows: Flags) -> str:
    every = [(table.step, row) for table in reading.tables for row in table.rows]
    chosen = [every[index] for index in np.flatnonzero(rows)]
    texts = [f"step {step} rank {row.rank} microbatch {row.microbatch} sequence {row.sequence}" for step, row in chosen]
    return ", ".join(texts[:4]) + (f" and {len(texts) - 4} more" if len(texts) > 4 else "")


def _undeclared(found: Term, reading: _Reading, fits: list[Explanation], context: Context, *, main: bool) -> Term:
    """The same finding where nobody said what the term is multiplied by, and other terms stand beside it."""
    within = context.precision.right_within
    best = fits[0] if fits else None
    if best is None or best.factor is None or not best.steady(within):
        return found
    observed = best.factor
    updates: dict[str, object] = {"observed_coefficient": observed}
    plain = best.tier in (Tier.SCALED, Tier.CONSTANT)
    if plain and main:
        name = f" ({best.factor_name})" if best.factor_name else ""
        updates |= {
            "verdict": Verdict.INCONCLUSIVE,
            "reason": (
                f"this term is multiplied by {observed:.6g}{name}, and whether that is meant can't be told: declare "
                "its coefficient, as in weighbridge.mark(..., coefficient=1.0), to have it judged"
            ),
        }
    elif not main:
        scaled = replace(reading, item=reading.item / observed)
        updates |= {"factor": None, "factor_name": None, "pieces": _pieces(scaled, scaled.relative)}
        if plain:
            rule = rule_of(context.objective.rule)
            updates |= {
                "verdict": Verdict.RIGHT,
                "rule": context.objective.rule,
                "story": rule.story,
                "remedy": "",
                "reason": f"read as multiplied by {observed:.6g}: declare coefficient= to have that judged",
            }
    return found.model_copy(update=updates)


def _judge_scalar(term: WeighedTerm, context: Context) -> Term:
    """The verdict on a term that is one number a microbatch: the sum of its weights against its coefficient."""
    weights = [table.columns.weight for table in term.tables]
    used = [index for index, weight in enumerate(weights) if np.isfinite(weight).any()]
    if not used:
        return _nothing(term)
    tables = [term.tables[index] for index in used]
    observed = np.array([np.nansum(weights[index]) for index in used])
    within = context.precision.right_within
    coefficient = term.coefficient if term.coefficient is not None else (1.0 if context.alone else None)
    middle = float(np.median(observed))
    relative = observed / (coefficient if coefficient is not None else middle or 1.0)
    pieces = [
        piece
        for table, value in zip(tables, relative, strict=True)
        for piece in piece_weights(table, np.full(len(table.rows), value), massless=True)
    ]
    found = Term(
        name=term.name,
        scalar=True,
        coefficient=term.coefficient,
        observed_coefficient=middle,
        pieces=pieces,
        precision=context.precision,
        verdict=Verdict.RIGHT,
    )
    if coefficient is None:
        return found.model_copy(update={"reason": "declare coefficient= to have it judged"})
    deviation = float(np.abs(relative - 1).max())
    if deviation <= within:
        return found
    name = _scalar_factor_name(relative, tables, context)
    constant = name is not None or np.ptp(relative) <= 2 * within * abs(float(relative.mean()))
    rule = rule_of("scaled" if constant else "unexplained")
    verdict, reason = _decide(None, deviation, context.precision)
    return found.model_copy(
        update={
            "verdict": verdict,
            "rule": rule.id,
            "story": rule.story,
            "remedy": rule.remedy,
            "factor_name": name,
            "factor": float(np.median(relative)) if constant else None,
            "reason": _joined(f"its weights add up to {middle:.6g} where {coefficient:.6g} was declared", reason),
        }
    )


def _scalar_factor_name(relative: Floats, tables: Sequence[Table], context: Context) -> str | None:
    """The name of the factor, with token counts taken from the main term's table of the same step."""
    by_step = {table.step: table for table in context.main_tables}
    totals = Sums([by_step.get(table.step, table).columns for table in tables]).totals
    names, values = factor_table(totals)
    with np.errstate(divide="ignore", invalid="ignore"):
        fits = (np.abs(relative / values - 1) <= context.precision.right_within).all(axis=1)
    return joined_names([names[index] for index in np.flatnonzero(fits)])


def _pieces(reading: _Reading, relative: Floats) -> list[PieceWeight]:
    parts = np.split(relative, np.cumsum([len(table.rows) for table in reading.tables])[:-1])
    return [piece for table, part in zip(reading.tables, parts, strict=True) for piece in piece_weights(table, part)]


def _with_gaps(found: Term, term: WeighedTerm, reading: _Reading, weight: Floats) -> Term:
    """The finding with what is odd about single rows: weight without tokens, tokens without weight, NaN."""
    counted = reading.sums.n > 0
    stray = ~counted & np.isfinite(weight) & (weight != 0)
    missing = int((counted & ~np.isfinite(weight)).sum())
    broken = [
        f"step {table.step} rank {row.rank} microbatch {row.microbatch}"
        for table in term.tables
        for row in table.rows
        if row.mass > 0 and row.weight is not None and not np.isfinite(row.weight)
    ]
    remarks = [
        f"a weight was read where no token counts: {_places(reading, stray)}" if stray.any() else "",
        f"the gradient is NaN or infinite in {', '.join(list(dict.fromkeys(broken))[:4])}" if broken else "",
        f"{missing} of {int(counted.sum())} rows with tokens were not read" if missing and not broken else "",
    ]
    spoilt = bool(broken) and found.verdict is Verdict.RIGHT
    return found.model_copy(
        update={"reason": _joined(found.reason, *remarks), "verdict": Verdict.INCONCLUSIVE if spoilt else found.verdict}
    )


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
