"""Programs that misbehave each get a record that says how, and none of them passes."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path

import pytest

from weighbridge.cases.reading import Reading, read_ending
from weighbridge.cases.record import make_record
from weighbridge.cases.runner import Limits, run_program

ONE_CHECK = 'print(\'{"observations": [{"check": "a", "actual": \' + %s + \', "expected": 1, "passed": true}]}\')'
GOOD = {"observations": [{"check": "a", "actual": 1, "expected": 1, "passed": True}], "passed": True}
FAST = Limits(seconds=3)


def reading_of(source: str, limits: Limits = FAST) -> Reading:
    """What the record of `source` would show; the record is made too, so that its schema is kept."""
    ending = run_program({"program.py": source.encode()}, limits=limits)
    reading = read_ending(ending)
    assert make_record(source.encode(), ending).passed is reading.passed
    return reading


def printing(document: object, *, status: int = 0) -> str:
    return f"import sys\nprint({json.dumps(document)!r})\nsys.exit({status})"


def test_a_good_program_passes() -> None:
    assert reading_of(printing(GOOD)).passed


HOSTILE = {
    "hang": ("import time\ntime.sleep(60)", "did not end within the time limit"),
    "busy hang": ("while True: pass", "did not end within the time limit"),
    "hang with its output closed": ("import os, time\nos.close(1); os.close(2); time.sleep(60)", "did not end within"),
    "flood": ("while True: print('x' * 10000)", "printed more than the output limit"),
    "flood of errors": (
        "import sys\nwhile True: sys.stderr.write('x' * 10000)",
        "printed more than the output limit",
    ),
    "no JSON": ("print('done')", "prints no JSON object on its last line"),
    "nothing at all": ("pass", "prints no JSON object on its last line"),
    "a list": ("print([1])", "prints no JSON object on its last line"),
    "NaN": (
        ONE_CHECK % "'NaN'",
        "prints NaN, which is not a JSON number",
    ),
    "a float too large": (
        ONE_CHECK % "'1e999'",
        "too large for a float",
    ),
    "a huge whole number": (
        ONE_CHECK % "'9' * 100000",
        "whole number of 100000 digits",
    ),
    "prints after the JSON": (printing(GOOD).replace("sys.exit(0)", "print('bye')"), "after its JSON object"),
    "two keys": ('print(\'{"passed": true, "passed": false}\')', "gives the key 'passed' twice"),
    "not UTF-8": ("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe{}')", "not UTF-8"),
    "half a surrogate": (
        printing({"observations": [{**GOOD["observations"][0], "check": "\ud800"}], "passed": True}),  # type: ignore[index]
        "half of a surrogate pair",
    ),
    "deep recursion": ("def f(): return f()\nf()", "ended with an uncaught RecursionError"),
    "recursion without a limit": (
        "import sys\nsys.setrecursionlimit(10**9)\n"
        "class A:\n    def __getattr__(self, n): return getattr(self, n + 'x')\nA().x",
        "ended by the signal SIGSEGV",
    ),
    "deep JSON": ("print('[' * 100000 + ']' * 100000)", "nested too deeply"),
    "fairly deep JSON": ('print(\'{"observations": \' + "[" * 40 + "]" * 40 + "}")', "nested too deeply"),
    "memory hog": ("x = bytearray(1 << 30)", "ended with an uncaught MemoryError"),
    "memory in small pieces": (
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "ended with an uncaught MemoryError",
    ),
    "kills itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended by the signal SIGKILL"),
    "a crash": ("import ctypes\nctypes.string_at(0)", "ended by the signal SIGSEGV"),
    "wrong exit status": (printing(GOOD, status=1), "exit status is 1, its checks ask for 0"),
    "another exit status": (printing(GOOD, status=7), "exit status is 7, its checks ask for 0"),
    "no observations": (printing({"observations": [], "passed": True}), "prints no list of observations"),
    "an observation of another shape": (printing({"observations": [{"check": "a"}], "passed": True}), "observation 0"),
    "a generous tolerance": (printing({**GOOD, "tolerance": 1e9}), "asks for a tolerance"),
    "a tolerance of NaN's kind": (printing({**GOOD, "tolerance": "nan"}), "asks for a tolerance"),
    "unknown keys": (printing({**GOOD, "score": 1}), "keys that the format does not have: score"),
    "a check twice": (printing({"observations": GOOD["observations"] * 2, "passed": True}), "the check 'a' twice"),  # type: ignore[operator]
}


@pytest.mark.parametrize("name", HOSTILE)
def test_its_record_says_what_it_did(name: str) -> None:
    source, finding = HOSTILE[name]
    began = time.monotonic()
    reading = reading_of(source)
    assert any(finding in text for text in reading.findings), reading.findings
    assert not reading.passed
    assert time.monotonic() - began < 10


LIES = {
    "a check that failed": ({"check": "a", "actual": 2, "expected": 1, "passed": True}, True),
    "a check that passed": ({"check": "a", "actual": 1, "expected": 1, "passed": False}, False),
    "true for one": ({"check": "a", "actual": True, "expected": 1, "passed": True}, True),
    "zero for None": ({"check": "a", "actual": 0, "expected": None, "passed": True}, True),
    "a number that is only near": ({"check": "a", "actual": 1.0000001, "expected": 1, "passed": True}, True),
}


@pytest.mark.parametrize("name", LIES)
def test_passed_is_never_taken_on_trust(name: str) -> None:
    observation, overall = LIES[name]
    document = {"observations": [observation], "passed": overall}
    reading = reading_of(printing(document, status=0 if overall else 1))
    assert reading.observations[0].passed is not observation["passed"]
    assert any("compared again" in text for text in reading.findings)
    assert not reading.passed


def test_a_lie_about_the_whole_is_found() -> None:
    document = {"observations": [{"check": "a", "actual": 2, "expected": 1, "passed": False}], "passed": True}
    assert "says passed is true, its checks say false" in reading_of(printing(document, status=1)).findings


def test_forks_stay_under_the_limit() -> None:
    source = """
import os, time
children = 0
try:
    while children < 200:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        children += 1
except OSError:
    pass
print(children)
"""
    ending = run_program({"program.py": source.encode()}, limits=FAST)
    if ending.enforced["processes"] != "limited":
        pytest.skip(ending.enforced["processes"])
    assert 1 <= int(ending.stdout) <= Limits().processes


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    source = """
import os, time
if os.fork() == 0:
    os.setsid()
    os.close(1); os.close(2)
    os.execv(os.sys.executable, ["python", "-c", "import time; time.sleep(47.25)"])
time.sleep(0.2)
"""
    ending = run_program({"program.py": source.encode()}, limits=FAST)
    if ending.enforced["descendants"] != "ended with the program":
        pytest.skip(ending.enforced["descendants"])
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(b"47.25" in command for command in commands)


def test_it_sees_an_empty_folder_no_environment_and_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIGHBRIDGE_SECRET", "47")
    source = """
import json, os, socket, sys
try:
    socket.create_connection(("127.0.0.1", 9), timeout=1)
    network = "connected"
except OSError as error:
    network = type(error).__name__ + str(error.errno)
print(json.dumps([sorted(os.environ), os.listdir(), network, sys.version.split()[0], sys.flags.isolated]))
"""
    ending = run_program({"program.py": source.encode()})
    environment, listing, network, version, isolated = json.loads(ending.stdout)
    assert "WEIGHBRIDGE_SECRET" not in environment
    assert listing == []
    assert isolated == 1
    assert version == platform.python_version()
    if ending.enforced["network"] == "none":
        assert network == "OSError101"


def test_root_gives_up_being_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    ending = run_program({"program.py": b"import os; print(os.getuid())"})
    if ending.enforced["processes"] != "limited":
        pytest.skip(ending.enforced["processes"])
    assert int(ending.stdout) != 0
