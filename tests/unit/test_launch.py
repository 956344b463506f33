"""Starting a command, watching its ranks, and ending it: with small real children that write record lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from weighbridge.errors import InputError
from weighbridge.weigh.launch import STARTUP_FOLDER, CommandResult, launch
from weighbridge.weigh.running import DeadRank, Patience, Progress
from weighbridge.weigh.watch import RecordWatch

QUICK = Patience(stragglers=1.0, grace=1.0, own_end=0.2, interrupt=1.0, terminate=1.0, poll=0.02, scan=0.05)

# What every child begins with: a small stand-in for the module that hooks torch.
CHILD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder = Path(os.environ["WEIGHBRIDGE_RECORD"])
def write(**entry):
    with open(folder / f"process-{os.getpid()}.jsonl", "a") as file:
        file.write(json.dumps(entry) + "\\n")
def start(rank=0, world_size=1):
    write(kind="process", pid=os.getpid(), executable=sys.executable, torch="2.13.0")
    write(kind="place", rank=rank, world_size=world_size)
def wait_for_stop():
    write(kind="finished")
    while not (folder / "stop").exists():
        time.sleep(0.01)
    os._exit(0)
def spawn(code, *arguments):
    return subprocess.Popen([sys.executable, "-S", "-c", os.environ["CHILD"] + code, *arguments])
"""


@pytest.fixture(autouse=True)
def child_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHILD", CHILD)


def run(
    folder: Path,
    code: str,
    *,
    options: dict[str, object] | None = None,
    timeout: float = 30.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> CommandResult:
    command = [sys.executable, "-S", "-c", CHILD + code]
    return launch(
        command,
        record_folder=folder,
        options=options or {},
        timeout=timeout,
        on_progress=on_progress,
        patience=QUICK,
    )


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_command_that_ends_by_itself_gives_its_exit_code(tmp_path: Path) -> None:
    result = run(tmp_path, "start(); write(kind='step', step=0); write(kind='exit', how='clean'); sys.exit(7)")
    assert (result.exit_code, result.ended_by, result.dead) == (7, "command", ())
    assert [process.steps for process in result.processes] == [1]
    assert not result.complete


def test_the_ranks_are_told_to_stop_when_all_have_finished(tmp_path: Path) -> None:
    seen: list[Progress] = []
    code = "rank = spawn('start(1, 2); write(kind=\"step\", step=0); wait_for_stop()')\n"
    code += "start(0, 2); write(kind='step', step=0); wait_for_stop()"
    result = run(tmp_path, code, on_progress=seen.append)
    assert (result.exit_code, result.ended_by, result.complete, result.dead) == (None, "weighing", True, ())
    assert result.seconds < 10
    assert seen[-1] == Progress(ranks=2, world_size=2, steps=1, weighed=True)


def test_a_rank_that_never_finishes_is_not_waited_for_forever(tmp_path: Path) -> None:
    code = "rank = spawn('start(1, 2); time.sleep(60)'); start(0, 2); wait_for_stop()"
    result = run(tmp_path, code)
    assert (result.ended_by, result.complete, result.unfinished_ranks) == ("weighing", False, (1,))
    assert all(is_gone(process.pid) for process in result.processes)


EXTENDING = """
def finish_at(step):
    write(kind="finished", steps=step)
    while not (folder / "stop").exists():
        if (folder / "go").exists() and int((folder / "go").read_text()) > step:
            return int((folder / "go").read_text())
        time.sleep(0.01)
    os._exit(0)
start()
write(kind="step", step=0)
write(kind="step", step=1)
"""


def test_ranks_go_on_for_more_steps_where_no_number_was_logged(tmp_path: Path) -> None:
    seen: list[Progress] = []
    code = EXTENDING + "more = finish_at(2)\nfor step in range(2, more): write(kind='step', step=step)\nfinish_at(more)"
    result = run(tmp_path, code, options={"steps": None, "tracer": True}, on_progress=seen.append)
    assert (result.ended_by, result.complete) == ("weighing", True)
    assert [process.steps for process in result.processes] == [32]
    assert seen[-1].extended_to == 32


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"steps": 2, "tracer": True}, ""),
        ({"steps": None, "tracer": False}, ""),
        ({"steps": None, "tracer": True}, "write(kind='reported', name='loss', phase='training')\n"),
    ],
)
def test_ranks_stop_where_more_steps_would_be_in_vain(options: dict[str, object], line: str, tmp_path: Path) -> None:
    result = run(tmp_path, EXTENDING + line + "finish_at(2)", options=options)
    assert (result.ended_by, result.complete) == ("weighing", True)
    assert not (tmp_path / "go").exists()


def test_a_command_that_ends_while_it_goes_on_has_done_its_steps(tmp_path: Path) -> None:
    code = EXTENDING + "finish_at(2); write(kind='exit', how='clean'); sys.exit(1)"
    result = run(tmp_path, code, options={"steps": None, "tracer": True})
    assert (result.ended_by, result.exit_code, result.complete, result.dead) == ("command", 1, True, ())


def test_keep_running_waits_for_the_command(tmp_path: Path) -> None:
    code = "start(); write(kind='step', step=0); time.sleep(0.5); write(kind='exit', how='clean'); sys.exit(3)"
    result = run(tmp_path, code, options={"keep_running": True}, timeout=0.3)
    assert (result.exit_code, result.ended_by) == (3, "command")


@pytest.mark.parametrize("seen_first", ["third.kill", "second.terminate"])
def test_the_killed_rank_comes_before_one_that_its_launcher_ended(seen_first: str, tmp_path: Path) -> None:
    ends = ["third.kill", "second.terminate"]
    ends.sort(key=lambda end: end != seen_first)
    code = f"""
second = spawn('start(1, 3); time.sleep(60)')
third = spawn('start(2, 3); time.sleep(60)')
start(0, 3)
while len([line for path in folder.glob("*.jsonl") for line in path.open() if "place" in line]) < 3:
    time.sleep(0.01)
time.sleep(0.2)
{ends[0]}()
time.sleep(0.3)
{ends[1]}()
time.sleep(0.3)
third.wait()
second.wait()
write(kind="exit", how="exception", message="RuntimeError: lost a rank")
sys.exit(1)
"""
    result = run(tmp_path, code)
    assert (result.exit_code, result.ended_by) == (1, "command")
    assert [(dead.rank, dead.signal) for dead in result.dead] == [(2, "SIGKILL"), (1, "SIGTERM")]
    assert [process.message for process in result.processes if process.rank == 0] == ["RuntimeError: lost a rank"]


def test_a_rank_that_is_the_command_itself_may_die_too(tmp_path: Path) -> None:
    result = run(tmp_path, "start(); os.kill(os.getpid(), signal.SIGSEGV)")
    assert result.exit_code == -signal.SIGSEGV
    assert [(dead.rank, dead.signal) for dead in result.dead] == [(0, "SIGSEGV")]


def test_a_rank_that_leaves_without_a_word_and_without_a_fault_is_not_dead(tmp_path: Path) -> None:
    code = "rank = spawn('start(0, 1); write(kind=\"step\", step=0); os._exit(0)'); rank.wait()"
    result = run(tmp_path, code)
    assert (result.exit_code, result.dead) == (0, ())


def test_timeout_ends_the_tree_and_keeps_the_records(tmp_path: Path) -> None:
    code = "rank = spawn('start(0, 1); time.sleep(60)'); rank.wait()"
    result = run(tmp_path, code, timeout=1.0)
    assert (result.ended_by, result.exit_code, result.dead) == ("timeout", None, ())
    (record,) = tmp_path.glob("process-*.jsonl")
    assert is_gone(int(record.stem.removeprefix("process-")))
    assert "place" in record.read_text()


def test_orphans_are_ended_even_if_they_ignore_sigterm(tmp_path: Path) -> None:
    code = """
code = "signal.signal(signal.SIGTERM, signal.SIG_IGN); start(0, 1); time.sleep(60)"
spawn(f"spawn({code!r}); time.sleep(0.3); os._exit(0)").wait()
while not any("place" in path.read_text() for path in folder.glob("*.jsonl")):
    time.sleep(0.01)
time.sleep(0.2)
sys.exit(4)
"""
    result = run(tmp_path, code)
    assert (result.exit_code, result.ended_by) == (4, "command")
    (orphan,) = result.processes
    assert is_gone(orphan.pid)


def test_nothing_else_is_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as other:
        run(tmp_path, "start(); time.sleep(60)", timeout=0.5)
        assert other.poll() is None


def test_interrupt_ends_the_children_and_keeps_the_records(tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: any("place" in path.read_text() for path in tmp_path.glob("*.jsonl")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = run(tmp_path, "rank = spawn('start(0, 1); time.sleep(60)'); rank.wait()")
    thread.join()
    assert (result.ended_by, result.exit_code, result.dead) == ("interrupt", None, ())
    assert all(is_gone(process.pid) for process in result.processes)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_standard_streams_and_environment_pass_through(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from weighbridge.weigh.launch import launch
code = "import os, sys; print(sys.stdin.read().upper(), os.environ['PYTHONPATH']); print('to stderr', file=sys.stderr)"
launch([sys.executable, "-S", "-c", code], record_folder=Path({str(tmp_path)!r}), options={{"steps": 3}})
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["/somewhere", *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", program], input="words", capture_output=True, text=True, env=environment, timeout=30
    )
    assert done.stderr == "to stderr\n"
    words, path = done.stdout.split(maxsplit=1)
    assert words == "WORDS"
    assert path.strip() == f"{STARTUP_FOLDER}{os.pathsep}{environment['PYTHONPATH']}"


def test_options_reach_the_ranks(tmp_path: Path) -> None:
    code = "(folder / 'options.json').write_text(os.environ['WEIGHBRIDGE_OPTIONS'])"
    run(tmp_path, code, options={"steps": 3, "objective": "sum"})
    assert json.loads((tmp_path / "options.json").read_text()) == {"steps": 3, "objective": "sum"}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "the command is empty"),
        ([""], "the command is empty"),
        (["no-such-program"], "'no-such-program' was not found"),
        (["./no/such/program"], "was not found"),
        (["{folder}/plain.py"], "Write: python"),
        (["{folder}/plain.txt"], "can't be executed"),
        (["{folder}"], "can't be executed"),
        (["{folder}/no_interpreter"], "can't be started"),
        (["{folder}/no_first_line"], "its first line"),
        (["echo", "a\0b"], "null"),
    ],
)
def test_a_command_that_cannot_start_is_one_clear_error(command: list[str], message: str, tmp_path: Path) -> None:
    for name, mode, text in [
        ("plain.py", 0o644, "pass"),
        ("plain.txt", 0o644, ""),
        ("no_interpreter", 0o755, "#!/no/such/interpreter\n"),
        ("no_first_line", 0o755, "print(1)\n"),
    ]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    with pytest.raises(InputError, match=message):
        launch([part.format(folder=tmp_path) for part in command], record_folder=tmp_path, options={})


def test_a_torn_last_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "process-17.jsonl"
    watch = RecordWatch(tmp_path)
    path.write_bytes(b'{"kind": "place", "rank": 1, "world_size": 2}\n{"kind": "ste')
    assert watch.read()
    assert (watch.processes[17].rank, watch.processes[17].steps) == (1, 0)
    assert not watch.read()
    with path.open("ab") as file:
        file.write(b'p", "step": 0}\nnot json\n[1]\n{"kind": "finished"}\n')
    assert watch.read()
    assert (watch.processes[17].steps, watch.processes[17].finished) == (1, True)
    assert not watch.all_weighed
    assert watch.unfinished_ranks == [0]


def test_dead_rank_without_anything_known_says_so() -> None:
    assert DeadRank(12) == DeadRank(pid=12, rank=None, signal=None, exit_code=None)


def test_how_a_worker_ended_is_taken_from_whoever_started_it(tmp_path: Path) -> None:
    # The starter takes the status away at once, as multiprocessing does, and says so only then.
    code = """
worker = spawn('start(1, 2); write(kind="step", step=0); time.sleep(60)')
start(0, 2)
while not (folder / f"process-{worker.pid}.jsonl").exists() or "step" not in (
        folder / f"process-{worker.pid}.jsonl").read_text():
    time.sleep(0.01)
time.sleep(0.3)
os.kill(worker.pid, signal.SIGSEGV)
status = worker.wait()
time.sleep(0.5)
write(kind="worker-ended", worker=worker.pid, status=status)
write(kind="exit", how="exception", message="RuntimeError: lost a worker")
sys.exit(1)
"""
    result = run(tmp_path, code)
    assert [(dead.rank, dead.signal) for dead in result.dead] == [(1, "SIGSEGV")]
