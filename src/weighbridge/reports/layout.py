"""What a report says and in which order, shared by the terminal and the page.

Nothing is judged here: an outcome is arranged into a headline, one block of labelled sentences a finding, and (in
`weighbridge.reports.grid`) one table of pieces. Both reports only differ in how they draw these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weighbridge.outcome import Finding, Outcome, Reported, Verdict
from weighbridge.reports.grid import Group, format_weight, group_reported, rank_text, rule_text, weight_range

__all__ = ["Block", "blocks", "clean", "facts", "headline", "lead_finding", "reported_title", "uneven_sequences"]


@dataclass(frozen=True, slots=True)
class Block:
    """One finding in words: a title, its verdict, and labelled sentences (the label may be "")."""

    title: str
    verdict: Verdict
    rule: str
    sentences: tuple[tuple[str, str], ...]


def lead_finding(outcome: Outcome) -> Finding:
    """The finding that the headline is about: the first that has the overall verdict and names a rule."""
    findings = [outcome.gradient, *outcome.reported]
    same = [finding for finding in findings if finding.verdict is outcome.verdict]
    named = [finding for finding in same if finding.rule]
    return (named or same or findings)[0]


def headline(outcome: Outcome) -> tuple[str, str]:
    """The verdict in words, and the rule that explains it ("" where none does)."""
    words = {Verdict.RIGHT: "Right", Verdict.WRONG: "Wrong", Verdict.INCONCLUSIVE: "Could not tell"}
    lead = lead_finding(outcome)
    return words[outcome.verdict], rule_text(lead) if lead.verdict is outcome.verdict else ""


def facts(outcome: Outcome) -> list[str]:
    """The size of what was weighed."""
    return [
        f"objective {outcome.objective}",
        _count(outcome.world_size, "rank"),
        f"{_count(outcome.microbatches, 'microbatch')} a step",
        f"{_count(outcome.steps, 'step')} weighed",
        *([] if outcome.seconds is None else [f"{outcome.seconds:.1f} s"]),
    ]


def _count(number: int, thing: str) -> str:
    plural = f"{thing}es" if thing.endswith("ch") else f"{thing}s"
    return f"{number} {thing if number == 1 else plural}"


def clean(text: str) -> str:
    """The text without anything that a terminal would obey, as escapes; line ends stay."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def reported_title(group: Group) -> str:
    """Name, source, phase and ranks of a reported number."""
    number = group.number
    where = [number.source]
    where += [number.phase] if number.phase != "training" else []
    where += [rank_text(group.ranks)] if group.ranks else []
    where += [f"one value every {number.window} steps"] if number.window > 1 else []
    return f"Reported {number.name} ({', '.join(where)})"


def blocks(outcome: Outcome) -> list[Block]:
    """All findings in words: the gradient, its terms if it has several, the reported numbers."""
    gradient = outcome.gradient
    extra = []
    if gradient.clip_factors:
        clips = ", ".join(f"{factor:.6g}" for factor in gradient.clip_factors[:8])
        more = ", and so on" if len(gradient.clip_factors) > 8 else ""
        extra.append(("Clipping", f"multiplied the gradients by {clips}{more}; the weights are shown without it."))
    found = [_block("Gradient", gradient, extra)]
    if len(gradient.terms) > 1:
        for term in gradient.terms:
            coefficients = [("declared", term.coefficient), ("observed", term.observed_coefficient)]
            text = ", ".join(f"{name} {value:.6g}" for name, value in coefficients if value is not None)
            found.append(_block(f"Loss term {term.name}", term, [("Coefficient", text)] if text else []))
    for group in group_reported(outcome.reported):
        extra = [*_values(group.number), *_range_of(group.number)]
        found.append(_block(reported_title(group), group.number, extra))
    return found


def _block(title: str, finding: Finding, extra: Sequence[tuple[str, str]]) -> Block:
    apart = "This batch could not show" if finding.verdict is Verdict.RIGHT else "This batch could not tell it from"
    sentences = [
        ("", finding.story),
        ("", finding.reason),
        ("What to change", finding.remedy),
        *extra,
        (apart, ", ".join(finding.indistinguishable)),
        ("Precision", _precision(finding)),
    ]
    return Block(title, finding.verdict, rule_text(finding), tuple(item for item in sentences if item[1]))


def _precision(finding: Finding) -> str:
    if finding.precision is None:
        return ""
    precision = finding.precision
    bands = f"right within {precision.right_within:.2g} of 1, wrong from {precision.wrong_from:.2g}"
    return f"{bands}. {precision.derivation}".strip()


def _values(number: Reported) -> list[tuple[str, str]]:
    if not number.values:
        return []
    pairs = []
    for index, value in enumerate(number.values[:3]):
        right = number.right_values[index] if index < len(number.right_values) else None
        pairs.append(f"{value:.6g}" + ("" if right is None else f" where {right:.6g} is right"))
    more = f"; {len(number.values) - 3} more" if len(number.values) > 3 else ""
    return [("Logged", "; ".join(pairs) + more)]


def _range_of(number: Reported) -> list[tuple[str, str]]:
    spread = weight_range(number.pieces)
    return [("Weights", spread)] if spread else []


def uneven_sequences(outcome: Outcome, limit: int = 5) -> list[str]:
    """Pieces in whose microbatch the sequences weigh differently, the most uneven first, one sentence each."""
    found = []
    for piece in outcome.gradient.pieces:
        weights = [part.relative_weight for part in piece.sequences or () if part.relative_weight is not None]
        finite = [weight for weight in weights if math.isfinite(weight)]
        if len(finite) > 1 and format_weight(min(finite)) != format_weight(max(finite)):
            where = f"rank {piece.rank}, microbatch {piece.microbatch}"
            where = where if piece.step is None else f"step {piece.step}, {where}"
            low, high = format_weight(min(finite)), format_weight(max(finite))
            found.append((max(finite) - min(finite), f"{where}: {low} to {high}"))
    found.sort(key=lambda item: -item[0])
    more = [f"and {len(found) - limit} more"] if len(found) > limit else []
    return [text for _, text in found[:limit]] + more
