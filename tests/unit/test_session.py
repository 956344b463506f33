"""From how the command ended and what was judged to one outcome."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from stub_parts import StubAssembly, stub_parts
from weighbridge.errors import InputError
from weighbridge.outcome import Outcome, Verdict
from weighbridge.readings import LoggedNumber
from weighbridge.weigh.conclude import conclude, unread_gradient
from weighbridge.weigh.launch import CommandResult
from weighbridge.weigh.running import DeadRank
from weighbridge.weigh.session import TRACER_NOTE, Weighing, WeighOptions, weigh_command
from weighbridge.weigh.watch import ProcessRecord

NUMBER = LoggedNumber(name="loss", source="weighbridge.report", phase="training", rank=0, values=(), epsilon=1e-7)
LOSSLESS = ProcessRecord(pid=3, stepped_without_loss=True)
RANK = ProcessRecord(pid=11, rank=0, world_size=2, steps=3)


def weigh(code: str, verdict: str = "right", folder: Path | None = None, **options: object) -> Weighing:
    command = [sys.executable, "-S", "-c", code]
    return weigh_command(command, WeighOptions(**options), record_folder=folder, parts=stub_parts(verdict))  # type: ignore[arg-type]


def concluded(
    result: CommandResult,
    verdict: str = "right",
    *,
    assembly: StubAssembly | None = None,
    reported: Verdict | None = None,
    steps_asked: int | None = None,
    keep_running: bool = False,
) -> Outcome:
    parts = stub_parts(verdict, assembly, reported)
    assembly = assembly or StubAssembly(world_size=2, steps=3)
    number = parts.judge_reported(NUMBER, None)
    return conclude(
        command=["train"],
        objective="token-mean",
        assembly=assembly,
        result=result,
        gradient=unread_gradient(assembly, result) if verdict == "unread" else parts.judge_gradient(None, None),  # type: ignore[arg-type]
        reported=[] if number is None else [number],
        unrelated=[],
        steps_asked=steps_asked,
        keep_running=keep_running,
        timeout=60.0,
    )


DONE = CommandResult(None, "weighing", (), 2.0, complete=True, processes=(RANK,))
FAILED = CommandResult(3, "command", (), 2.0, processes=(RANK,))


@pytest.mark.parametrize(
    ("gradient", "reported", "overall"),
    [
        ("right", None, "right"),
        ("right", Verdict.RIGHT, "right"),
        ("right", Verdict.WRONG, "wrong"),
        ("right", Verdict.INCONCLUSIVE, "inconclusive"),
        ("inconclusive", Verdict.WRONG, "wrong"),
        ("inconclusive", Verdict.RIGHT, "inconclusive"),
        ("wrong", Verdict.RIGHT, "wrong"),
    ],
)
def test_the_worst_verdict_is_the_whole_verdict(gradient: str, reported: Verdict | None, overall: str) -> None:
    assert concluded(DONE, gradient, reported=reported).verdict == overall


def test_the_reason_names_what_is_wrong() -> None:
    assert concluded(DONE, "wrong").reason == "The gradient is wrong."
    both = concluded(DONE, "wrong", reported=Verdict.WRONG).reason
    assert both == "The gradient and the reported number loss are wrong."
    open_ = concluded(DONE, "right", reported=Verdict.INCONCLUSIVE).reason
    assert open_ == "The reported number loss could not be judged: few values"
    assert concluded(DONE).reason == ""


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (FAILED, "The command failed with exit code 3 before its weighed steps were done."),
        (CommandResult(-9, "command", (), 2.0), "The command was killed by SIGKILL before"),
        (CommandResult(None, "timeout", (), 2.0), "The weighed steps were not done within 60 s."),
        (CommandResult(None, "interrupt", (), 2.0), "The command was interrupted before"),
        (CommandResult(None, "weighing", (), 2.0, unfinished_ranks=(1, 2)), "Ranks 1 and 2 had not done"),
        (CommandResult(0, "command", (DeadRank(12, 1, "SIGKILL"),), 2.0), "Rank 1 of 2 (process 12) died before"),
    ],
)  # fmt: skip
def test_a_run_that_stopped_early_leaves_right_open_and_wrong_standing(result: CommandResult, reason: str) -> None:
    outcome = concluded(result)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert outcome.reason.startswith(reason)
    assert outcome.reason.endswith("What was weighed until then is right.")
    assert concluded(result, "wrong").verdict is Verdict.WRONG
    assert any(problem.startswith(reason[1:40]) for problem in (text[1:] for text in outcome.problems))


def test_dead_ranks_and_exceptions_become_problems_in_order() -> None:
    dead = (DeadRank(12, 1, "SIGKILL"), DeadRank(11, 0, None, 7), DeadRank(9))
    crashed = ProcessRecord(pid=13, rank=2, world_size=3, ended_how="exception", message="ValueError: no")
    outcome = concluded(CommandResult(1, "command", dead, 2.0, processes=(crashed,)))
    assert outcome.problems == [
        "rank 1 of 2 (process 12) died: it was killed by SIGKILL.",
        "rank 0 of 2 (process 11) died later: it left without a word with exit code 7.",
        "process 9 died later: it left without a word.",
        "rank 2 of 3 (process 13) ended with ValueError: no",
        "the command failed with exit code 1 before its weighed steps were done.",
    ]


def test_an_exception_that_the_records_tell_is_told_once() -> None:
    crashed = ProcessRecord(pid=13, rank=1, world_size=2, ended_how="exception", message="ValueError: no")
    assembly = StubAssembly(world_size=2, steps=3, problems=["rank 1 of 2 ended with ValueError: no"])
    outcome = concluded(CommandResult(0, "command", (), 2.0, processes=(crashed,)), assembly=assembly)
    assert outcome.problems == ["rank 1 of 2 ended with ValueError: no"]


def test_ranks_that_disagree_about_microbatches_are_not_judged(tmp_path: Path) -> None:
    problem = (
        "rank 1 of 2 recorded 3 microbatches in step 0, rank 0 recorded 2. The weights of step 0 can't be compared."
    )
    parts = stub_parts("wrong", StubAssembly(problems=["something else.", problem], comparable=False))
    outcome = weigh_command(["true"], WeighOptions(), record_folder=tmp_path, parts=parts).outcome
    assert (outcome.verdict, outcome.gradient.reason) == (Verdict.INCONCLUSIVE, problem)
    assert outcome.gradient.pieces


def test_a_command_that_fails_after_the_weighed_steps_keeps_its_verdict() -> None:
    outcome = concluded(FAILED, keep_running=True, steps_asked=3)
    assert outcome.verdict is Verdict.RIGHT
    assert outcome.problems == ["the command failed with exit code 3 after its weighed steps were done."]
    assert outcome.command_exit_code == 3


def test_a_short_training_is_noted() -> None:
    outcome = concluded(CommandResult(0, "command", (), 2.0, processes=(RANK,)), steps_asked=8)
    assert outcome.verdict is Verdict.RIGHT
    assert outcome.notes == ["the command ended by itself after 3 of 8 steps to be weighed."]


@pytest.mark.parametrize(
    ("assembly", "processes", "reason"),
    [
        (StubAssembly(None, steps=0, saw_torch=False, saw_loss=False), (), "no process of the command ran"),
        (StubAssembly(None, steps=0), (ProcessRecord(pid=3),), "no optimizer step was seen"),
        (StubAssembly(None, steps=3, saw_loss=False), (RANK,), "no loss was seen, though an optimizer stepped."),
        (StubAssembly(None, steps=0, saw_loss=False), (ProcessRecord(pid=3),), "no optimizer step was seen."),
        (StubAssembly(None, steps=0, saw_loss=False), (LOSSLESS,), "no loss was seen, though an optimizer stepped."),
        (StubAssembly(None, steps=3), (RANK,), "the probe's gradient was read in none of 3 steps."),
        (StubAssembly(gradient=None, problems=["every label is masked in step 0"]), (RANK,), "every label is masked"),
    ],
)  # fmt: skip
def test_a_gradient_that_was_not_read_says_why(
    assembly: StubAssembly, processes: tuple[ProcessRecord, ...], reason: str
) -> None:
    result = CommandResult(0, "command", (), 2.0, processes=processes)
    outcome = concluded(result, "unread", assembly=assembly)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert outcome.gradient.reason.startswith(reason)
    assert outcome.reason.startswith("The gradient could not be judged: ")


def test_a_right_run_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    weighing = weigh("pass")
    assert weighing.outcome.verdict is Verdict.RIGHT
    assert weighing.outcome.versions["torch"] == "2.13.0"
    assert weighing.record_folder is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_problems_keeps_its_records_and_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    record = "import os; open(os.environ['WEIGHBRIDGE_RECORD'] + '/process-1.jsonl', 'w').close(); "
    weighing = weigh(record + "raise SystemExit(5)")
    (folder,) = tmp_path.iterdir()
    assert weighing.record_folder == folder
    # The command failed after its first step, when the tracer came in: the note on the tracer may explain that.
    assert weighing.outcome.notes == [TRACER_NOTE, f"the records are kept in {folder}"]


def test_a_run_that_recorded_nothing_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert weigh("raise SystemExit(5)").record_folder is None
    assert list(tmp_path.iterdir()) == []


def test_records_that_cannot_be_read_are_inconclusive(tmp_path: Path) -> None:
    outcome = weigh("pass", "broken", tmp_path).outcome
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert "line 3 of process-1.jsonl is no JSON" in outcome.problems[0]


def test_a_fault_of_ours_says_where_the_records_are(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        weigh("pass", "fault", tmp_path)
    assert caught.value.__notes__ == [f"The records of the run lie in {tmp_path}"]


def test_options_reach_the_ranks_as_json(tmp_path: Path) -> None:
    code = (
        "import os; open(os.environ['WEIGHBRIDGE_RECORD'] + '/options', 'w').write(os.environ['WEIGHBRIDGE_OPTIONS'])"
    )
    weigh(code, folder=tmp_path / "new" / "folder", steps=4, coefficients={"router": 0.01})
    options = json.loads((tmp_path / "new" / "folder" / "options").read_text())
    assert options == {
        "objective": "token-mean", "steps": 4, "keep_running": False, "uneven": False, "tracer": True,
        "timeout": 1800.0, "coefficients": {"router": 0.01},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"timeout": 0.0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"coefficients": {"router": float("inf")}}, "the coefficient of 'router' is inf"),
        ({"objective": "mean"}, "objective is 'mean'"),
    ],
)
def test_bad_options_are_one_clear_error(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        weigh("open('started', 'w')", folder=tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_record_folder_must_be_writable_and_unused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        weigh("pass", folder=tmp_path / "file")
    with pytest.raises(InputError, match="can't be written"):
        weigh("pass", folder=tmp_path / "file" / "below")
    (tmp_path / "process-7.jsonl").write_text("")
    with pytest.raises(InputError, match="holds the records of another run"):
        weigh("pass", folder=tmp_path)


def test_arguments_that_are_not_utf8_are_shown_as_escapes(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "pass", os.fsdecode(b"\xff")]
    outcome = weigh_command(command, WeighOptions(), record_folder=tmp_path, parts=stub_parts("right")).outcome
    assert outcome.command[-1] == "\\xff"


def test_causes_come_before_what_followed_from_them() -> None:
    assembly = StubAssembly(world_size=2, steps=3, problems=["rank 0 of 2 ended with RuntimeError: connection closed"])
    result = CommandResult(1, "command", (DeadRank(12, 1, "SIGKILL"),), 2.0)
    assert [text[:11] for text in concluded(result, assembly=assembly).problems] == [
        "rank 1 of 2",
        "rank 0 of 2",
        "the command",
    ]


def test_a_loss_that_is_not_finite_leaves_right_open_and_wrong_standing() -> None:
    place = "the loss is NaN in step 1, rank 1, microbatch 0, sequence 0 (cross_entropy)."
    assembly = StubAssembly(world_size=2, steps=3, problems=[place], not_finite=place)
    outcome = concluded(DONE, assembly=assembly)
    assert outcome.verdict is Verdict.INCONCLUSIVE
    assert outcome.reason == f"T{place[1:]} What was weighed until then is right."
    assert concluded(DONE, "wrong", assembly=assembly).verdict is Verdict.WRONG
    assert outcome.problems == [place]


def test_ranks_that_disagree_show_no_rule(tmp_path: Path) -> None:
    problem = "rank 1 of 2 recorded 3 microbatches in step 0, rank 0 recorded 2. They can't be compared."
    parts = stub_parts("wrong", StubAssembly(problems=[problem], comparable=False))
    gradient = weigh_command(["true"], WeighOptions(), record_folder=tmp_path, parts=parts).outcome.gradient
    assert (gradient.rule, gradient.story, gradient.remedy) == (None, "", "")


def test_a_probe_that_was_left_out_of_the_reduction_decides_nothing(tmp_path: Path) -> None:
    parts = stub_parts("wrong", StubAssembly(left_out=True))
    outcome = weigh_command(["true"], WeighOptions(), record_folder=tmp_path, parts=parts).outcome
    gradient = outcome.gradient
    assert (gradient.verdict, gradient.rule, gradient.pieces) == (Verdict.INCONCLUSIVE, None, [])
    assert "collected its parameters before the probe joined" in gradient.reason
    assert outcome.verdict is Verdict.INCONCLUSIVE


def test_a_coefficient_of_a_term_that_was_not_seen_is_said(tmp_path: Path) -> None:
    weighing = weigh("pass", "right", tmp_path, coefficients={"rooter": 0.01})
    assert any("'rooter' has a coefficient and is no term of the loss" in note for note in weighing.outcome.notes)
