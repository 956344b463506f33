"""Records: their schema, their digest, and what verify makes of them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from weighbridge.cases.catalogue import MECHANISMS, load_catalogue
from weighbridge.cases.entry import Entry, Implementation, load_entry
from weighbridge.cases.programs import published_program
from weighbridge.cases.reading import Reading
from weighbridge.cases.record import Record, canonical_json, digest_of, make_record, schema
from weighbridge.cases.runner import Ending
from weighbridge.cases.verify import run_entry_program, verify_entries, write_records
from weighbridge.errors import RecordError

FOUNDING = load_entry(MECHANISMS / "mean-of-rank-means")


def test_the_published_schema_is_the_model_s() -> None:
    published = {key: value for key, value in schema().items() if key != "$schema"}
    assert published == Record.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_record_of_the_founding_case() -> None:
    record = run_entry_program(FOUNDING, 1, Implementation.FAILING)
    assert (record.case, record.variant, record.implementation) == ("WB-0001", 1, "failing")
    assert (record.exit_status, record.stopped, record.passed, record.findings) == (1, None, False, [])
    assert [one.actual for one in record.observations] == [2.0, 1.5, None, 0.0, 1.5, 1.0]
    assert '"actual": 2.0, "expected": 2.5' in record.printed
    content = record.model_dump()
    jsonschema.validate(content, schema())
    assert record.digest == digest_of(content)


def test_the_digest_is_known_so_that_it_is_the_same_everywhere() -> None:
    """These change only if an entry, the program format or the record format changes; then correct them."""
    digests = {which: run_entry_program(FOUNDING, 3, which).digest[:16] for which in Implementation}
    assert digests == {
        "failing": "4c982d4d49404637",
        "unsuccessful": "493f71e6815f566f",
        "repair": "f47c1423ef985abd",
    }


def test_time_and_speed_stay_outside_the_digest() -> None:
    endings = [Ending(1, None, b"{}", b"", seconds, {"network": network}) for seconds, network in ((1, "a"), (2, "b"))]
    one, other = (make_record(b"x", ending) for ending in endings)
    assert one.environment != other.environment
    assert one.digest == other.digest


def test_canonical_json() -> None:
    assert canonical_json({"b": 1.0, "a": ["é", None]}) == '{"a":["é",null],"b":1.0}'.encode()
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))


def test_a_record_that_breaks_the_schema_is_an_error() -> None:
    with pytest.raises(RecordError, match="breaks its schema"):
        make_record(b"x", Ending(1, "power", b"", b"", 0.0), reading=Reading())  # no such limit


def test_published_programs_run_with_any_python(tmp_path: Path) -> None:
    path = tmp_path / "repair.py"
    path.write_text(published_program(FOUNDING, Implementation.REPAIR, n=7))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["passed"] is True


def test_verify_says_what_does_not_hold(tmp_path: Path) -> None:
    swapped = dict(FOUNDING.sources)
    swapped[Implementation.FAILING], swapped[Implementation.REPAIR] = (
        swapped[Implementation.REPAIR],
        swapped[Implementation.FAILING],
    )
    swapped[Implementation.UNSUCCESSFUL] = "def solve(rows):\n    return 1 / 0\n"
    verified = verify_entries([FOUNDING, dataclasses.replace(FOUNDING, sources=swapped)])
    assert [one.holds for one in verified] == [True, False]
    assert "failing at N = 1 passes every check, and must fail" in verified[1].problems
    assert any(problem.startswith("repair at N = 10 does not pass") for problem in verified[1].problems)
    write_records(verified[:1], tmp_path)
    assert len(list((tmp_path / "mean-of-rank-means").glob("*.json"))) == 9
    assert Record.model_validate_json((tmp_path / "mean-of-rank-means" / "3-repair.json").read_text()).passed


def test_failing_and_unsuccessful_must_differ() -> None:
    sources = {**FOUNDING.sources, Implementation.UNSUCCESSFUL: FOUNDING.sources[Implementation.FAILING]}
    problems = verify_entries([dataclasses.replace(FOUNDING, sources=sources)])[0].problems
    assert "failing and unsuccessful give the same answers at N = 3, and must differ" in problems


def test_a_program_can_t_bring_its_own_checks() -> None:
    cheat = (
        "import json\nprint(json.dumps({'observations': [{'check': 'a', 'actual': 1, 'expected': 1, 'passed': True}],"
        " 'passed': True}))\nraise SystemExit(0)\ndef solve(rows): pass\n"
    )
    sources = {**FOUNDING.sources, Implementation.REPAIR: cheat}
    record = run_entry_program(dataclasses.replace(FOUNDING, sources=sources), 1, Implementation.REPAIR)
    assert record.findings == ["its checks are not the entry's fixtures"]
    assert not record.passed


def other_pythons() -> list[str]:
    found = [shutil.which(f"python3.{minor}") for minor in (11, 12, 13, 14)]
    return [path for path in found if path]


@pytest.mark.parametrize("which", list(Implementation))
def test_other_pythons_print_the_same(which: Implementation, tmp_path: Path) -> None:
    """What a digest covers must not depend on the version; sums of floats changed in 3.12, for one."""
    pythons = []
    for path in other_pythons():
        if subprocess.run([path, "-I", "-c", ""], capture_output=True).returncode == 0:
            pythons.append(path)
    if not pythons:
        pytest.skip("no other Python here")

    def outputs(python: str) -> dict[str, str]:
        script = "import runpy, sys, contextlib, io, json\nout = {}\nfor path in sys.argv[1:]:\n"
        script += (
            "    held = io.StringIO()\n    with contextlib.redirect_stdout(held), contextlib.suppress(SystemExit):\n"
        )
        script += "        runpy.run_path(path)\n    out[path] = held.getvalue()\nprint(json.dumps(out))\n"
        done = subprocess.run(
            [python, "-I", "-c", script, *map(str, paths)], capture_output=True, text=True, check=True
        )
        read: dict[str, str] = json.loads(done.stdout)
        return read

    paths = []
    for entry in load_catalogue():
        program = tmp_path / f"{entry.name}.py"
        program.write_text(published_program(entry, which, n=entry.facts.variants[1]))
        paths.append(program)
    here = outputs(sys.executable)
    for python in pythons:
        assert outputs(python) == here, python


def test_every_entry_s_programs_are_generated_alike_twice() -> None:
    def texts(entry: Entry) -> list[str]:
        return [published_program(entry, which, n=2) for which in Implementation]

    assert [texts(entry) for entry in load_catalogue()] == [texts(entry) for entry in load_catalogue()]
