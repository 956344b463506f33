"""The tally in one process and among threads: names, kinds, states, limits."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from weighbridge.collectives import Collective, ThreadRank, run_ranks
from weighbridge.errors import CollectiveError, InputError, NonFiniteError
from weighbridge.mean import Exactness, Mean
from weighbridge.tally import Tally

LOSSES = [[1.0, 2.5, 3.0], [], [7.25], [0.1, 0.2, 0.3, 0.4]]


def test_one_process() -> None:
    tally = Tally()
    tally.add("loss", torch.tensor([1.0, 2.0, 6.0]), torch.tensor([True, False, True]))
    tally.add("accuracy", np.array([True, False, True, True]))
    tally.add("reward", [1.0, 5.0], weights=[3.0, 1.0])
    tally.add_row("rows", 9.0, 3)
    tally.add_min("shortest", [4, 2])
    tally.add_max("longest", torch.tensor([4.0, 9.0]), torch.tensor([True, False]))
    means = tally.reduce()
    assert {name: result.value for name, result in means.items()} == {
        "accuracy": 0.75, "longest": 4.0, "loss": 3.5, "reward": 2.0, "rows": 3.0, "shortest": 2.0,
    }  # fmt: skip
    assert means["loss"].count == 2
    assert means["loss"].perplexity == math.exp(3.5)
    assert means["rows"].exactness is Exactness.ROWS
    assert means["loss"].exactness is Exactness.TOKENS
    with pytest.raises(KeyError, match="'los' was not added by any rank"):
        means["los"]


def test_reduce_is_repeatable_and_adds_go_on() -> None:
    def work(group: ThreadRank) -> list[float | None]:
        tally = Tally(group)
        tally.add("loss", LOSSES[group.rank])
        first, again = tally.reduce()["loss"], tally.reduce()["loss"]
        assert first == again
        assert first is not again
        assert tally.local()["loss"].count == len(LOSSES[group.rank])
        tally.add("loss", [100.0])
        more = tally.reduce()["loss"]
        tally.clear()
        nothing = tally.reduce()["loss"]
        return [first.value, more.value, nothing.value]

    flat = [value for losses in LOSSES for value in losses]
    for values in run_ranks(4, work):
        assert values == [Mean.of(flat).value, Mean.of([*flat, *[100.0] * 4]).value, None]


def test_ranks_may_add_different_names_or_none() -> None:
    def work(group: ThreadRank) -> tuple[dict[str, tuple[float | None, int]], dict[str, int]]:
        tally = Tally(group)
        for step in range(3):
            if group.rank == 1:
                tally.add("only on one", [5.0])
                tally.add_min("least", [2.0])
            if group.rank == 2:
                tally.add("loss", np.array([8.0]) if step else np.array([8.0], dtype=np.float32))
            if group.rank == 0:
                tally.add("loss", np.array([2.0], dtype=np.float32))
            means = tally.reduce()
        return {name: (result.value, result.count) for name, result in means.items()}, means.contributors

    for found, contributors in run_ranks(4, work):
        assert found == {"loss": (5.0, 6), "only on one": (5.0, 3), "least": (2.0, 3)}
        assert contributors == {"loss": 2, "only on one": 1, "least": 1}


def test_names_that_are_known_cost_one_collective() -> None:
    def work(group: ThreadRank) -> list[int]:
        tally = Tally(group)
        calls = []
        for step in range(4):
            tally.clear()
            if step != 2:
                tally.add("a" if group.rank else "b", [1.0])
            before = group._calls
            tally.reduce()
            calls.append(group._calls - before)
        return calls

    assert run_ranks(2, work) == [[3, 1, 1, 1]] * 2


def test_many_names_take_a_second_message_and_stay_right() -> None:
    def work(group: ThreadRank) -> bool:
        tally = Tally(group)
        for index in range(300):
            tally.add(f"metric {index}", [float(index), float(group.rank)])
        means = tally.reduce()
        return all(means[f"metric {index}"].value == (3 * index + 3) / 6 for index in range(300))

    assert run_ranks(3, work) == [True] * 3


def test_a_name_of_two_kinds_is_an_error_on_every_rank() -> None:
    def work(group: ThreadRank) -> str:
        tally = Tally(group)
        if group.rank == 1:
            tally.add_max("loss", [1.0])
        else:
            tally.add("loss", [1.0])
        with pytest.raises(CollectiveError) as caught:
            tally.reduce()
        assert tally.local()["loss"].count == 1
        return str(caught.value)

    told = set(run_ranks(3, work))
    assert told == {
        "'loss' stands for a mean on ranks 0 and 2 and a max on rank 1. A name stands for one thing on all ranks. "
        "Use another name."
    }
    tally = Tally()
    tally.add("loss", [1.0])
    with pytest.raises(InputError, match="'loss' stands for a mean, and a min was added"):
        tally.add_min("loss", [1.0])


def test_everywhere_all_names_who_lacks_what() -> None:
    def work(group: ThreadRank) -> str:
        tally = Tally(group, everywhere="all")
        tally.add("loss", [1.0])
        if group.rank == 2:
            tally.add("accuracy", [1.0])
        with pytest.raises(CollectiveError, match="ranks 0 and 1 of 3 added no 'accuracy'"):
            tally.reduce()
        if group.rank < 2:
            tally.add("accuracy", [])
        return str(tally.reduce()["accuracy"].count)

    assert run_ranks(3, work) == ["1"] * 3


def test_two_tallies_are_never_mixed() -> None:
    def work(group: ThreadRank) -> str:
        first, second = Tally(group), Tally(group)
        for tally in (first, second):
            tally.add("loss", [1.0])
            tally.reduce()
        with pytest.raises(CollectiveError) as caught:
            (first if group.rank else second).reduce()
        return str(caught.value)

    assert all(
        "rank 0 is in reduce 2 of its tally 1; rank 1 is in reduce 2 of its tally 0" in text
        for text in run_ranks(2, work)
    )


def test_a_missing_rank_is_named_within_the_limit() -> None:
    def work(group: ThreadRank) -> tuple[int, ...]:
        tally = Tally(group)
        tally.add("loss", [2.0])
        if group.rank == 1:
            return ()
        with pytest.raises(CollectiveError, match="rank 1 of 3 did not take part in a sum") as caught:
            tally.reduce()
        assert tally.local()["loss"].value == 2.0
        return caught.value.missing

    assert run_ranks(3, work, limit=0.3) == [(1,), (), (1,)]


def test_nonfinite_policies_hold_over_ranks() -> None:
    def work(group: ThreadRank) -> tuple[float | None, int]:
        values = [math.nan, 4.0] if group.rank else [1.0, 1.0]
        raising, skipping = Tally(group, nonfinite="raise"), Tally(group, nonfinite="skip")
        for tally in (raising, skipping):
            tally.add("loss", values)
        with pytest.raises(NonFiniteError, match="1 of 4 values in 'loss' over 2 ranks are not finite: 1 NaN"):
            raising.reduce()
        mean = skipping.reduce()["loss"]
        return mean.value, mean.skipped

    assert run_ranks(2, work) == [(2.0, 1)] * 2


def test_extremes() -> None:
    def work(group: ThreadRank) -> list[object]:
        tally = Tally(group)
        tally.add_min("least", [[3.0, -0.5], [], [math.inf]][group.rank])
        tally.add_max("nothing", torch.zeros(2), torch.zeros(2, dtype=torch.bool))
        tally.add_max("nan", [math.nan if group.rank == 2 else 1.0])
        means = tally.reduce()
        return [means["least"].value, means["least"].count, means["nothing"].value, str(means["nan"].value)]

    assert run_ranks(3, work) == [[-0.5, 3, None, "nan"]] * 3


def test_a_state_resumes_at_any_world_size() -> None:
    def save(group: ThreadRank) -> tuple[dict[str, object], dict[str, object], str]:
        tally = Tally(group)
        tally.add("loss", LOSSES[group.rank])
        tally.add("reward", LOSSES[group.rank], weights=[2.0] * len(LOSSES[group.rank]))
        tally.add_max("most", LOSSES[group.rank])
        return tally.local_state_dict(), tally.state_dict(), tally.reduce()["loss"].digest()

    saved = json.loads(json.dumps(run_ranks(4, save)))
    states, wholes, digests = zip(*saved, strict=True)
    assert len(set(map(json.dumps, wholes))) == 1
    for world_size in (1, 2, 3, 4, 6):
        for state in (wholes[0], states):

            def resume(group: ThreadRank, state: object = state) -> tuple[dict[str, object], str]:
                tally = Tally(group)
                tally.add("loss", [1e9])
                tally.load_state_dict(state)
                return tally.state_dict()["entries"], tally.reduce()["loss"].digest()

            for entries, digest in run_ranks(world_size, resume):
                assert entries == wholes[0]["entries"]
                assert digest == digests[0]


def test_a_state_that_would_count_wrongly_is_refused() -> None:
    def save(group: ThreadRank) -> tuple[dict[str, object], dict[str, object]]:
        tally = Tally(group)
        tally.add("loss", [1.0])
        return tally.local_state_dict(), tally.state_dict()

    (first, whole), (second, _) = run_ranks(2, save)
    with pytest.raises(InputError, match="that of rank 1 of 2, and this is rank 0 of 1"):
        Tally().load_state_dict(second)
    with pytest.raises(InputError, match="Rank 1 of 2 is not among them"):
        Tally().load_state_dict([first])
    with pytest.raises(InputError, match="those of ranks 0 and 0"):
        Tally().load_state_dict([first, first])
    with pytest.raises(InputError, match="counted twice"):
        Tally().load_state_dict([first, whole])
    with pytest.raises(InputError, match=r"A tally loads 'weighbridge\.tally/1'"):
        Tally().load_state_dict({"loss": 1.0})


def test_adding_depends_on_no_data() -> None:
    tally = Tally()
    values, mask = torch.empty(5, device="meta"), torch.empty(5, dtype=torch.bool, device="meta")
    for _ in range(2):
        tally.add("loss", values, mask)
        tally.add("weighted", values, mask, weights=values)
        tally.add_max("most", values, mask)
        tally.add_row("row", values.sum(), mask.sum())
    assert {entry.kind.value for entry in tally._entries.values()} == {"mean", "weighted mean", "max"}


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(InputError, match="The group is a str"):
        Tally("dp")
    with pytest.raises(InputError, match="everywhere is 'some'"):
        Tally(everywhere="some")
    assert run_ranks(1, lambda group: isinstance(group, Collective)) == [True]
