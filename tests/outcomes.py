"""Outcomes for the tests of the reports: right, wrong, inconclusive, large, hostile."""

from __future__ import annotations

import math

from weighbridge.outcome import Gradient, Outcome, PieceWeight, Precision, Reported, Term, Verdict

__all__ = ["hostile", "inconclusive", "large", "right", "several_terms", "with_nan", "wrong"]

COMMAND = ["torchrun", "--nproc-per-node", "2", "train.py", "--note", "two words"]
PRECISION = Precision(
    right_within=9.5e-7,
    wrong_from=9.5e-4,
    derivation="The gradient passed through float32; two readings of one weight differ by 1.2e-7.",
)
STORY = "Each rank takes the mean over its own tokens, and the means are averaged as equals."
REMEDY = "Divide each rank's loss sum by the number of tokens on all ranks, and multiply by the number of ranks."
COUNTS = [(0, 0, 26), (0, 1, 105), (1, 0, 40), (1, 1, 182)]  # rank, microbatch, tokens: unequal on purpose


def pieces(weights: list[float | None], steps: list[int | None]) -> list[PieceWeight]:
    return [
        PieceWeight(
            step=step, rank=rank, microbatch=microbatch, tokens=tokens, loss_sum=4.16 * tokens, relative_weight=w
        )
        for step in steps
        for (rank, microbatch, tokens), w in zip(COUNTS, weights, strict=True)
    ]


def right() -> Outcome:
    """Everything weighs 1; a batch that could not show everything."""
    return Outcome(
        command=COMMAND,
        world_size=2,
        microbatches=2,
        steps=1,
        objective="token-mean",
        verdict=Verdict.RIGHT,
        gradient=Gradient(
            verdict=Verdict.RIGHT,
            rule="token-mean",
            indistinguishable=["duplicated-items", "unsynchronised-ranks"],
            story="Every token weighs the same.",
            pieces=pieces([1.0, 1.0 + 1e-7, 1.0, 1.0 - 1e-7], [0]),
            precision=PRECISION,
        ),
        versions={"torch": "2.13.0", "weighbridge": "0.1.0"},
        seconds=12.34,
    )


def wrong() -> Outcome:
    """Gradient and logged loss wrong, in three steps, with a factor, a problem and a note."""
    weights: list[float | None] = [1.3387, 1.3387, 0.7981, 0.7981]
    return Outcome(
        command=COMMAND,
        world_size=2,
        microbatches=2,
        steps=3,
        objective="token-mean",
        verdict=Verdict.WRONG,
        reason="The gradient and the reported number loss are wrong.",
        gradient=Gradient(
            verdict=Verdict.WRONG,
            rule="mean-of-rank-means",
            factor=2.0,
            factor_name="W",
            indistinguishable=["weighted-by-sequences"],
            story=STORY,
            remedy=REMEDY,
            pieces=pieces(weights, [4, 5, 6]),
            precision=PRECISION,
            clip_factors=[0.25, 0.5],
        ),
        reported=[
            Reported(
                name="loss",
                source="transformers.Trainer.log",
                verdict=Verdict.WRONG,
                rule="mean-of-rank-means",
                story=STORY,
                remedy="Log the sum of loss sums over the sum of tokens.",
                rank=0,
                values=[4.1602, 4.1587],
                right_values=[4.21, None],
                pieces=[
                    PieceWeight(rank=rank, microbatch=microbatch, tokens=tokens, relative_weight=w, inferred=rank == 1)
                    for (rank, microbatch, tokens), w in zip(COUNTS, [1.34, 1.34, 0.8, 0.8], strict=True)
                ],
            ),
            Reported(
                name="eval_loss",
                source="transformers.Trainer.log",
                phase="evaluation",
                verdict=Verdict.RIGHT,
                rule="token-mean",
                rank=0,
                pieces=[PieceWeight(rank=0, microbatch=0, tokens=300, relative_weight=1.0)],
            ),
        ],
        unrelated=["learning_rate"],
        problems=["rank 1 of 2 (process 4711) died: it was killed by SIGKILL."],
        notes=["torch.compile was weighed eagerly."],
        versions={"torch": "2.13.0", "transformers": "5.24.0", "weighbridge": "0.1.0"},
        seconds=61.2,
    )


def inconclusive() -> Outcome:
    """Nothing was weighed at all."""
    reason = "no loss was seen in 3 weighed steps. Mark the per-token losses before they are reduced."
    return Outcome(
        command=["python", "train.py"],
        world_size=0,
        objective="token-mean",
        verdict=Verdict.INCONCLUSIVE,
        reason=f"the gradient could not be judged: {reason}",
        gradient=Gradient(verdict=Verdict.INCONCLUSIVE, reason=reason),
    )


def large(ranks: int = 8, microbatches: int = 25) -> Outcome:
    """200 pieces with weights between 0.3 and 3."""
    found = [
        PieceWeight(
            step=0,
            rank=rank,
            microbatch=microbatch,
            tokens=5 + (37 * rank + 11 * microbatch) % 90,
            relative_weight=math.exp(1.1 * math.sin(1 + rank * microbatches + microbatch)),
        )
        for rank in range(ranks)
        for microbatch in range(microbatches)
    ]
    gradient = Gradient(
        verdict=Verdict.WRONG, rule="mean-of-microbatch-means", story=STORY, remedy=REMEDY, pieces=found
    )
    return wrong().model_copy(
        update={"gradient": gradient, "reported": [], "world_size": ranks, "microbatches": microbatches, "steps": 1}
    )


def with_nan() -> Outcome:
    """Weights that no log scale can show, and one that was not read."""
    gradient = wrong().gradient.model_copy(update={"pieces": pieces([math.nan, 0.0, -1.5, None], [0]), "terms": []})
    return wrong().model_copy(update={"gradient": gradient, "reported": []})


def several_terms() -> Outcome:
    """A right main loss that hides an auxiliary one."""
    terms = [
        Term(name="cross_entropy", verdict=Verdict.RIGHT, rule="token-mean"),
        Term(
            name="router", verdict=Verdict.WRONG, rule="scaled", factor=2.0, coefficient=0.01, observed_coefficient=0.02
        ),
    ]
    sequences = [PieceWeight(rank=0, microbatch=0, tokens=13, relative_weight=w) for w in (0.5, 1.5)]
    first, *rest = wrong().gradient.pieces
    found = [first.model_copy(update={"sequences": sequences}), *rest]
    gradient = wrong().gradient.model_copy(update={"terms": terms, "term": "router", "pieces": found})
    return wrong().model_copy(update={"gradient": gradient})


def hostile() -> Outcome:
    """Names that would do harm where they are not escaped."""
    script = "<script>alert('x')</script>"
    number = (
        wrong()
        .reported[0]
        .model_copy(
            update={
                "name": script,
                "source": '"><img src=x onerror=alert(1)>',
                "story": "{{ 7 * 7 }} $x^2$ [red]bold[/red]",
            }
        )
    )
    return wrong().model_copy(
        update={
            "command": ["python", "-c", f"print('{script}')\x1b[2J\nrm"],
            "reported": [number, number.model_copy(update={"rank": 1, "verdict": Verdict.INCONCLUSIVE})],
            "problems": [f"{script}\x1b[31m\r\x07 & more"],
            "notes": ["</style></svg>$\\frac{"],
            "versions": {script: script},
            "unrelated": [script],
        }
    )
