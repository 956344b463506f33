"""Runs that fail, hang, are killed or show nothing: the exit code, what is said, what is kept, and that it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from weighing import SCRIPTS, Weighed, script, start_weighing, torchrun, weigh

from weighbridge.weigh.process_tree import is_alive

pytestmark = pytest.mark.launch

BAD = f"{SCRIPTS}/bad_run.py"


@pytest.fixture(autouse=True)
def records_go_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def of_ours(text: str) -> bool:
    """Whether a traceback with code of weighbridge in it was printed."""
    return "Traceback" in text and "weighbridge/weigh/" in text


def inconclusive(found: Weighed, reason: str) -> None:
    assert found.exit_code == 3, found.stdout + found.stderr
    assert not of_ours(found.stdout + found.stderr)
    assert found.json["verdict"] == "inconclusive"
    assert found.json["reason"].startswith(reason), found.json["reason"]


def kept_records(found: Weighed) -> list[Path]:
    (note,) = [note for note in found.json["notes"] if note.startswith("the records are kept in ")]
    return list(Path(note.removeprefix("the records are kept in ")).glob("process-*.jsonl"))


# -- the command itself -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program"], "'no-such-program' was not found. A command starts with a program"),
        (["{folder}/train.py"], "can't be executed. A script is run by Python. Write: python {folder}/train.py"),
        ([], "the command is empty"),
    ],
)
def test_a_command_that_cannot_start_is_a_usage_error(command: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    found = weigh(tmp_path, *(part.format(folder=tmp_path) for part in command))
    assert (found.exit_code, found.json, found.stdout) == (2, {}, "")
    assert found.stderr.startswith("weighbridge: ")
    assert message.format(folder=tmp_path) in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("option", ["--json", "--html", "--record"])
def test_output_that_cannot_be_written_is_said_before_the_command_starts(option: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "below"
    found = weigh(tmp_path, "touch", str(tmp_path / "started"), options=(option, str(target)))
    assert found.exit_code == 2
    assert str(target) in found.stderr
    assert "can't be written" in found.stderr
    assert not (tmp_path / "started").exists()


# -- failing before, in and after the weighed steps -------------------------------------------------------------------


def test_failing_before_the_first_step(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "fails-before"))
    inconclusive(found, "The command failed with exit code 1 before its weighed steps were done.")
    assert "ValueError: the data is missing" in found.stderr
    assert found.json["command_exit_code"] == 1
    assert found.gradient["reason"].startswith("no process of the command ran a PyTorch model")


def test_failing_in_a_step_shows_the_steps_before(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "fails-in"))
    inconclusive(found, "The command failed with exit code 1 before its weighed steps were done. What was weighed")
    assert "step 0" in found.stdout
    assert "RuntimeError: step 1 failed" in found.stderr
    assert found.json["problems"][0] == "rank 0 of 1 ended with RuntimeError: step 1 failed"
    assert (found.json["steps"], found.gradient["verdict"]) == (1, "right")
    assert [piece["tokens"] for piece in found.gradient["pieces"]] == [3, 9]
    assert len(kept_records(found)) == 1


def test_failing_after_the_weighed_steps_keeps_the_verdict(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "fails-after"), options=("--keep-running", "--steps", "3"))
    assert (found.exit_code, found.json["verdict"], found.json["command_exit_code"]) == (0, "right", 7)
    assert "cannot save" in found.stderr
    assert found.json["problems"] == ["the command failed with exit code 7 after its weighed steps were done."]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_that_fails_is_named(method: str, tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "fails-in", "--spawn", "2", "--method", method))
    inconclusive(found, "The command failed with exit code 1")
    assert "rank 0 of 2 ended with RuntimeError: step 1 failed" in found.json["problems"]
    assert not any("died" in problem for problem in found.json["problems"])


def test_training_that_ends_by_itself_early_is_judged_by_what_it_did(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "two-steps"), options=("--steps", "5"))
    assert (found.exit_code, found.json["verdict"], found.json["steps"]) == (0, "right", 2)
    assert "the command ended by itself after 2 of 5 steps to be weighed." in found.json["notes"]


# -- nothing to weigh -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("no-loss", "no loss was seen, though an optimizer stepped. weighbridge sees the loss functions of torch."),
        ("no-step", "no optimizer step was seen. The weights are read when an optimizer is about to step."),
        ("masked", "every label was masked: nothing was counted"),
    ],
)
def test_nothing_to_weigh_says_what_was_missing(fault: str, reason: str, tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", fault))
    inconclusive(found, f"The gradient could not be judged: {reason}")


def test_a_loss_that_is_nan_is_never_right_and_the_first_is_named(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "nan", "--spawn", "2"))
    place = "the loss is NaN in step 1, rank 1, microbatch 0, sequence 0 (cross_entropy)."
    inconclusive(found, place.capitalize().replace("nan", "NaN"))
    assert found.json["problems"][0] == place
    assert found.json["problems"][-1].endswith("more losses are not finite.")


# -- ranks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ["torchrun", "own workers"])
def test_a_killed_rank_is_named_and_the_others_records_are_shown(launcher: str, tmp_path: Path) -> None:
    command = torchrun(BAD, "killed") if launcher == "torchrun" else script("bad_run.py", "killed", "--spawn", "2")
    found = weigh(tmp_path, *command)
    inconclusive(found, "The command failed with exit code 1 before its weighed steps were done.")
    assert re.fullmatch(r"rank 1 of 2 \(process \d+\) died: it was killed by SIGKILL\.", found.json["problems"][0])
    assert {piece["rank"] for piece in found.gradient["pieces"]} == {0, 1}
    assert len([path for path in kept_records(found) if '"step"' in path.read_text()]) == 2


def test_ranks_that_disagree_about_microbatches_are_not_compared(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "disagrees", "--spawn", "2"))
    problem = (
        "rank 0 of 2 recorded 2 microbatches in step 1, rank 1 recorded 3. The weights of step 1 can't be compared. "
        "Give every rank the same number of microbatches, or pass --steps 1 to end before that step."
    )
    inconclusive(found, f"The gradient could not be judged: {problem}")
    assert found.gradient["rule"] is None
    assert found.json["problems"] == [problem]
    assert weigh(tmp_path, *script("bad_run.py", "disagrees", "--spawn", "2"), options=("--steps", "1")).exit_code == 0


def still_runs(record: Path) -> bool:
    """Whether the process that wrote `record` runs; an orphan that has ended stays a zombie until somebody reaps it."""
    try:
        return is_alive(psutil.Process(int(record.stem.split("-")[1])))
    except psutil.NoSuchProcess:
        return False


# -- ended from outside -----------------------------------------------------------------------------------------------


def test_a_step_that_never_comes_ends_what_was_started_and_nothing_else(tmp_path: Path) -> None:
    stranger = psutil.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    found = weigh(tmp_path, *script("bad_run.py", "hangs", "--spawn", "2"), options=("--timeout", "20"))
    assert stranger.is_running()
    stranger.kill()
    stranger.wait()
    inconclusive(found, "The weighed steps were not done within 20 s.")
    assert found.json["steps"] <= 1
    assert found.json["seconds"] < 60
    assert not any(still_runs(path) for path in kept_records(found))


def test_control_c_ends_the_children_and_keeps_the_records(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    running = start_weighing(*script("bad_run.py", "hangs", "--spawn", "2"), options=("--record", str(folder)))
    assert running.stdout is not None
    while "hanging" not in running.stdout.readline():
        pass
    until = time.monotonic() + 60
    while len(list(folder.glob("process-*.jsonl"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)
    stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stdout + stderr
    assert not of_ours(stderr)
    assert "The command was interrupted before its weighed steps were done." in " ".join(stdout.split())
    records = list(folder.glob("process-*.jsonl"))
    assert len(records) >= 2
    assert not any(still_runs(path) for path in records)


# -- a Python that can't be weighed -----------------------------------------------------------------------------------


def test_python_without_torch(tmp_path: Path) -> None:
    found = weigh(tmp_path, "python", "-S", BAD, "two-steps")
    inconclusive(found, "The command failed with exit code 1 before its weighed steps were done.")
    assert "No module named 'torch'" in found.stderr
    assert found.gradient["reason"].startswith("no process of the command ran a PyTorch model")


def test_torch_that_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.1.2+cpu'\n")
    (tmp_path / "train.py").write_text("import torch\nprint('trained with', torch.__version__)\n")
    found = weigh(tmp_path, "python", str(tmp_path / "train.py"))
    assert "trained with 2.1.2+cpu" in found.stdout
    message = (
        r"torch is 2\.1\.2\+cpu in process \d+\. Weighing needs torch 2\.6 or newer\. Run: pip install 'torch>=2\.6'"
    )
    assert found.exit_code == 3
    assert re.fullmatch(message, found.gradient["reason"])


def test_python_without_weighbridge(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'WEIGHBRIDGE_RECORD' in os.environ:\n    sys.modules['weighbridge'] = None\n"
    )
    (tmp_path / "torch.py").write_text("__version__ = '2.9.0'\n")
    (tmp_path / "train.py").write_text("import torch\n")
    found = weigh(tmp_path, "python", str(tmp_path / "train.py"), environment={"PYTHONPATH": str(tmp_path)})
    python = shutil.which("python", path=str(Path(sys.executable).parent))
    inconclusive(found, f"The gradient could not be judged: {python} can't load weighbridge (ModuleNotFoundError(")
    assert "The command's Python must have weighbridge installed." in found.json["problems"][0]


def test_training_that_the_environment_does_not_reach(tmp_path: Path) -> None:
    code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, {BAD!r}, 'two-steps'], env={{}}))"
    found = weigh(tmp_path, "python", "-c", code)
    inconclusive(found, "The gradient could not be judged: no process of the command ran a PyTorch model")
    assert "hands its environment on to its workers" in found.gradient["reason"]
    assert found.json["command_exit_code"] == 0
