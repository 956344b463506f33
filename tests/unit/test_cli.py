"""The command line: exit codes, messages, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from stub_parts import stub_parts
from weighbridge import __version__
from weighbridge.cli import COMMANDS, run, weighbridge
from weighbridge.weigh.session import Parts

PYTHON = [sys.executable, "-S", "-c"]


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = getattr(request, "param", "right")
    monkeypatch.setattr(Parts, "load", classmethod(lambda cls: stub_parts(name)))
    return str(name)


def real(*arguments: str, verdict: str = "right", **environment: str) -> subprocess.CompletedProcess[str]:
    """`weighbridge` in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    return subprocess.run(
        [sys.executable, "-m", "stub_parts", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path, "STUB_VERDICT": verdict, **environment},
    )


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(weighbridge, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)
    result = CliRunner().invoke(weighbridge, ["weigh", "--help"])
    assert result.exit_code == 0
    assert all(option in result.output for option in ("--objective", "--keep-running", "--no-tracer", "--coefficient"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_every_command_can_be_loaded() -> None:
    context = weighbridge.make_context("weighbridge", ["x"], resilient_parsing=True)
    assert all(weighbridge.get_command(context, name) is not None for name in COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["weigh", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"import sys; from weighbridge.cli import run; run({arguments}); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    heavy = ["'pydantic'", "'numpy'", "'matplotlib'", "'jinja2'", "'rich'", "'torch'", "'psutil'"]
    assert not [name for name in heavy if name in done.stdout]


@pytest.mark.parametrize(
    ("verdict", "status"), [("right", 0), ("wrong", 1), ("inconclusive", 3), ("unread", 3)], indirect=["verdict"]
)
def test_exit_status_is_the_verdict(
    verdict: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "w.json"), "--html", str(tmp_path / "w.html"), "--record", str(tmp_path / "r")]
    assert run(["weigh", *files, "--", *PYTHON, "pass"]) == status
    assert {"right": "Right", "wrong": "Wrong"}.get(verdict, "Could not tell") in capsys.readouterr().out
    assert json.loads((tmp_path / "w.json").read_text())["command"] == [*PYTHON, "pass"]
    assert "<svg" in (tmp_path / "w.html").read_text() or verdict == "unread"


@pytest.mark.usefixtures("verdict")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["weigh"], "the command is empty"),
        (["weigh", "--", "no-such-program"], "'no-such-program' was not found"),
        (["weigh", "--steps", "0", "--", "true"], "steps is 0"),
        (["weigh", "--steps", "many", "--", "true"], "is not a valid integer"),
        (["weigh", "--timeout", "-1", "--", "true"], "timeout is -1"),
        (["weigh", "--objective", "mean", "--", "true"], "objective is 'mean'"),
        (["weigh", "--coefficient", "router", "--", "true"], "--coefficient is 'router'"),
        (["weigh", "--coefficient", "router=x", "--", "true"], "--coefficient is 'router=x'"),
        (["weigh", "--coefficient", "a=1", "--coefficient", "a=2", "--", "true"], "names 'a' twice"),
        (["weigh", "--json", "/no/such/folder/w.json", "--", "touch", "started"], "can't be written"),
        (["weigh", "--html", ".", "--", "touch", "started"], "is a folder"),
        (["weigh", "--record", "/dev/null/x", "--", "touch", "started"], "can't be written"),
        (["weigh", "--no-such-option", "--", "true"], "No such option"),
        (["no-such-command"], "No such command"),
    ],
)
def test_bad_input_is_one_message_and_status_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == [], "nothing was started"


@pytest.mark.usefixtures("verdict")
def test_the_command_keeps_its_own_dashes(tmp_path: Path) -> None:
    command = [
        *PYTHON,
        "import sys; sys.exit(sys.argv[1:] != ['--', '--json', 'x', '--help'])",
        "--",
        "--json",
        "x",
        "--help",
    ]
    path = tmp_path / "w.json"
    for separator in (["--"], []):
        run(["weigh", "--json", str(path), *separator, *command])
        data = json.loads(path.read_text())
        assert (data["command"], data["command_exit_code"]) == (command, 0)


@pytest.mark.parametrize("verdict", ["fault"], indirect=True)
def test_a_fault_of_ours_is_a_message_with_the_folder(
    verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["weigh", "--record", str(tmp_path / "one"), "--", *PYTHON, "pass"]) == 3
    message = capsys.readouterr().err
    assert f"The records of the run lie in {tmp_path / 'one'}." in message
    assert "Traceback" not in message
    monkeypatch.setenv("WEIGHBRIDGE_DEBUG", "1")
    assert run(["weigh", "--record", str(tmp_path / "two"), "--", *PYTHON, "pass"]) == 3
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_output_of_the_command_passes_through_and_progress_goes_to_stderr() -> None:
    code = """
import json, os
folder = os.environ["WEIGHBRIDGE_RECORD"]
with open(f"{folder}/process-{os.getpid()}.jsonl", "w") as file:
    for entry in [{"kind": "place", "rank": 0, "world_size": 1}, {"kind": "step"}, {"kind": "exit", "how": "clean"}]:
        print(json.dumps(entry), file=file)
print("step 1: loss 3.2")
"""
    done = real("weigh", "--", *PYTHON, code, verdict="wrong")
    assert done.returncode == 1
    assert done.stdout.startswith("step 1: loss 3.2\n\nWrong: token-mean\n")
    assert done.stderr == "weighbridge: weighing 1 rank\n"
    assert "\x1b" not in done.stdout


def test_real_exit_codes_without_a_traceback() -> None:
    for arguments, status in [
        (["weigh", "--", "no-such-program"], 2),
        (["weigh", "--", *PYTHON, "raise SystemExit(4)"], 3),
    ]:
        done = real(*arguments)
        assert done.returncode == status
        assert "Traceback" not in done.stderr


def test_ctrl_c_ends_the_command_and_exits_130(tmp_path: Path) -> None:
    code = "import os, time; open('started', 'w').write(str(os.getpid())); time.sleep(60)"
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", "stub_parts", "weigh", "--json", "w.json", "--record", "records", "--", *PYTHON, code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "STUB_VERDICT": "right"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 20
    while not ((tmp_path / "started").exists() and (tmp_path / "started").read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    out, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in out
    assert error.count("Traceback") <= 1, "only the command's own KeyboardInterrupt"
    assert json.loads((tmp_path / "w.json").read_text())["verdict"] == "inconclusive"
    assert (tmp_path / "records").is_dir()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "started").read_text()), 0)
