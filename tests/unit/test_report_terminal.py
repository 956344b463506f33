"""The report in a terminal: what it says, at which width, without colour and with hostile names."""

from __future__ import annotations

import io
import math

import pytest

import outcomes
from weighbridge.outcome import Outcome, PieceWeight
from weighbridge.reports.grid import distance, format_weight, piece_grid
from weighbridge.reports.terminal import bar, print_outcome

ALL = ["right", "wrong", "inconclusive", "large", "with_nan", "several_terms", "hostile"]


def shown(outcome: Outcome, width: int = 80) -> str:
    stream = io.StringIO()
    print_outcome(outcome, stream, width=width)
    return stream.getvalue()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    text = shown(getattr(outcomes, name)(), width)
    widest = max(len(line.rstrip()) for line in text.splitlines())
    assert widest <= max(width, 60)  # narrower than a table of one column is nobody's terminal
    assert not any(ord(char) < 32 for char in text if char != "\n"), "a pipe gets no control characters"


def test_wrong_says_rule_factor_story_remedy_and_what_could_not_be_told_apart() -> None:
    text = " ".join(shown(outcomes.wrong()).split())
    for part in [
        "Wrong: mean-of-rank-means times W (2)",
        "The gradient and the reported number loss are wrong.",
        "Step 4.",
        "0 0 26 1.3387",
        "~0.8000",
        "In steps 5 to 6, gradient weights are between 0.7981 and 1.3387.",
        "Each rank takes the mean over its own tokens",
        "What to change: Divide each rank's loss sum",
        "This batch could not tell it from: weighted-by-sequences",
        "Precision: right within 9.5e-07 of 1, wrong from 0.00095. The gradient passed through float32",
        "Clipping: multiplied the gradients by 0.25, 0.5",
        "Reported loss (transformers.Trainer.log, rank 0): wrong, mean-of-rank-means",
        "4.1602 where 4.21 is right; 4.1587",
        "Reported eval_loss (transformers.Trainer.log, evaluation, rank 0): right, token-mean",
        "rank 1 of 2 (process 4711) died: it was killed by SIGKILL.",
        "torch.compile was weighed eagerly.",
        "Logged, but not made from the weighed losses: learning_rate.",
    ]:
        assert part in text


def test_right_says_what_the_batch_could_not_show() -> None:
    text = " ".join(shown(outcomes.right()).split())
    assert "Right: token-mean" in text
    assert "This batch could not show: duplicated-items, unsynchronised-ranks" in text


def test_inconclusive_says_why_and_shows_no_table() -> None:
    text = shown(outcomes.inconclusive())
    assert "Could not tell\n" in text
    assert "no loss was seen" in text
    assert "microbatch  " not in text


def test_many_pieces_show_the_most_extreme_in_their_order() -> None:
    outcome = outcomes.large()
    grid = piece_grid(outcome, limit=40)
    assert (len(grid.lines), grid.total) == (40, 200)
    assert [(line.rank, line.microbatch) for line in grid.lines] == sorted(
        (line.rank, line.microbatch) for line in grid.lines
    )
    kept = min(distance(line.cells[0].weight) for line in grid.lines)
    assert sum(distance(piece.relative_weight) >= kept for piece in outcome.gradient.pieces) == 40
    assert "40 of 200 pieces: those whose weights lie farthest from 1." in shown(outcome)


def test_terms_and_uneven_sequences_are_listed() -> None:
    text = " ".join(shown(outcomes.several_terms()).split())
    assert "Loss term router: wrong, scaled times 2 Coefficient: declared 0.01, observed 0.02" in text
    assert "step 4, rank 0, microbatch 0: 0.5000 to 1.5000" in text


def test_gradient_and_logged_number_stand_side_by_side_for_the_same_step() -> None:
    def piece(step: int, rank: int, tokens: int, weight: float) -> PieceWeight:
        return PieceWeight(step=step, rank=rank, microbatch=0, tokens=tokens, relative_weight=weight)

    gradient = [
        piece(0, 0, 10, 1.5),
        piece(0, 1, 20, 0.75),
        piece(1, 0, 7, 2.0),
        piece(1, 1, 21, 0.6),
        piece(2, 1, 9, 0.9),
    ]
    logged = [piece(1, 0, 7, 2.0), piece(2, 1, 9, 0.9)]
    outcome = outcomes.wrong()
    outcome = outcome.model_copy(
        update={
            "gradient": outcome.gradient.model_copy(update={"pieces": gradient}),
            "reported": [outcome.reported[0].model_copy(update={"pieces": logged})],
        }
    )
    lines = piece_grid(outcome).lines
    assert [(line.step, line.rank, line.tokens) for line in lines] == [(1, 0, 7), (2, 1, 9)]
    assert [[cell.weight for cell in line.cells] for line in lines] == [[2.0, 2.0], [0.9, 0.9]]
    text = " ".join(shown(outcome).split())
    assert "Each piece in the step in which its weight in a logged number was read." in text
    assert "In all 3 steps, gradient weights are between 0.6000 and 2.0000." in text


def test_a_number_that_every_rank_logs_alike_is_shown_once() -> None:
    number = outcomes.wrong().reported[0]
    numbers = [number.model_copy(update={"rank": rank, "values": [4.16 + 1e-7 * rank]}) for rank in range(8)]
    text = " ".join(shown(outcomes.wrong().model_copy(update={"reported": numbers})).split())
    assert text.count("Reported loss") == 1
    assert "Reported loss (transformers.Trainer.log, ranks 0 to 7): wrong" in text
    odd = numbers[1].model_copy(update={"pieces": outcomes.right().gradient.pieces})
    text = " ".join(shown(outcomes.wrong().model_copy(update={"reported": [numbers[0], odd, numbers[2]]})).split())
    assert "(transformers.Trainer.log, ranks 0 and 2): wrong" in text
    assert "(transformers.Trainer.log, rank 1): wrong" in text


def test_columns_without_room_are_named() -> None:
    assert "No room for" in shown(outcomes.hostile(), 60)


@pytest.mark.parametrize(
    ("weight", "expected"),
    [(1.0, "    │    "), (2.0, "    │████"), (0.5, "████│    "), (0.0, "████│    "), (-1.0, "████│    "),
     (math.inf, "    │████"), (math.nan, "    │    "), (None, "    │    "),
     (2**0.375, "    │█▌  "), (2**-0.375, "  ▐█│    ")],
)  # fmt: skip
def test_bar_is_centred_on_one_on_a_log_scale(weight: float | None, expected: str) -> None:
    assert bar(weight, math.log(2), 9) == expected


def test_bar_without_block_characters() -> None:
    assert bar(2.0, math.log(2), 9, blocks_allowed=False) == "    |####"
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    print_outcome(outcomes.wrong(), stream, width=80)


@pytest.mark.parametrize(
    ("weight", "text"),
    [(1.0, "1.0000"), (0.0, "0"), (math.nan, "nan"), (None, "-"), (1e-5, "1.00e-05"), (-12345.0, "-1.23e+04")],
)
def test_weights_are_short(weight: float | None, text: str) -> None:
    assert format_weight(weight) == text
