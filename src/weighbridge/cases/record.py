"""The record of one run: what was run, how it ended, what was observed, and a digest that anyone can compute again.

The digest covers what the same inputs give on every machine; time, versions and speed lie in `environment`, outside
it. A record is canonical JSON (sorted keys, UTF-8, no spaces) when it is digested, and is validated against the
published schema (record.schema.json) when it is made.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jsonschema
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from weighbridge.cases.reading import Reading, read_ending
from weighbridge.cases.runner import Ending
from weighbridge.errors import RecordError

__all__ = ["Record", "canonical_json", "digest_of", "make_record", "schema"]

_SCHEMA = Path(__file__).with_name("record.schema.json")
_OUTSIDE = {"digest", "environment"}
_SHA256 = r"^[0-9a-f]{64}$"


class Observation(BaseModel):
    """One check: actual and expected as printed, the program's own word, and the result of comparing again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    check: str
    actual: JsonValue
    expected: JsonValue
    claimed: bool
    passed: bool


class Environment(BaseModel):
    """What may differ from machine to machine, and is no part of the digest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: str
    weighbridge: str
    utc: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
    seconds: float = Field(ge=0)
    enforced: dict[str, str]


class Record(BaseModel):
    """One run of one program. `passed` is recomputed; `findings` says everything that was wrong with the run."""

    model_config = ConfigDict(extra="forbid", frozen=True, title="weighbridge case record")

    format: Literal["weighbridge-case-record/1"] = "weighbridge-case-record/1"
    case: str | None
    variant: int | None
    implementation: str | None
    exit_status: int | None
    stopped: Literal["time", "output"] | None
    observations: list[Observation]
    findings: list[str]
    printed: str
    passed: bool
    source_sha256: str = Field(pattern=_SHA256)
    digest: str = Field(pattern=_SHA256)
    environment: Environment


def make_record(
    source: bytes,
    ending: Ending,
    *,
    case: str | None = None,
    variant: int | None = None,
    implementation: str | None = None,
    reading: Reading | None = None,
) -> Record:
    """The record of the run of `source` that ended as `ending`, validated against the schema."""
    from weighbridge import __version__

    reading = reading or read_ending(ending)
    content: dict[str, Any] = {
        "format": "weighbridge-case-record/1",
        "case": case,
        "variant": variant,
        "implementation": implementation,
        "exit_status": ending.exit_status,
        "stopped": ending.stopped,
        "observations": [vars(one) for one in reading.observations],
        "findings": reading.findings,
        "printed": reading.printed,
        "passed": reading.passed,
        "source_sha256": hashlib.sha256(source).hexdigest(),
    }
    content["environment"] = {
        "python": platform.python_version(),
        "weighbridge": __version__,
        "utc": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(ending.seconds, 3),
        "enforced": ending.enforced,
    }
    content["digest"] = digest_of(content)
    _validate(content)
    return Record.model_validate(content)


def digest_of(record: dict[str, Any]) -> str:
    """The SHA-256 of the record's canonical JSON without `digest` and `environment`."""
    content = {key: value for key, value in record.items() if key not in _OUTSIDE}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8, and never NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


@cache
def schema() -> dict[str, Any]:
    """The published JSON schema of a record."""
    document: dict[str, Any] = json.loads(_SCHEMA.read_text("utf-8"))
    return document


@cache
def _validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema())


def _validate(content: dict[str, Any]) -> None:
    error = next(_validator().iter_errors(content), None)
    if error is not None:
        raise RecordError(f"A record breaks its schema at {error.json_path}: {error.message}. Please report this.")
