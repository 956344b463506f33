"""One entry of the catalogue: what case.toml holds, and the three programs beside it.

The facts are TOML, so that a person can read and write them; the programs are files of their own, so that they can be
run, read and compared as they are. An entry that breaks a rule of the format is refused with the rule.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from weighbridge.cases.compare import plain
from weighbridge.cases.expressions import evaluate
from weighbridge.errors import InputError

__all__ = ["Entry", "Exhibit", "Facts", "Fixture", "Implementation", "load_entry"]

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Implementation(StrEnum):
    """The three programs of an entry."""

    FAILING = "failing"
    UNSUCCESSFUL = "unsuccessful"
    REPAIR = "repair"


class Fixture(BaseModel):
    """One check: a label, what `solve` is given and what it should answer, both as expressions in N."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: Text
    input: Text
    expected: Text

    @field_validator("input", "expected")
    @classmethod
    def _on_one_line(cls, text: str) -> str:
        return " ".join(text.split())

    def given(self, n: int) -> Any:
        """What `solve` is given at N = `n`."""
        return evaluate(self.input, n=n)

    def answer(self, n: int) -> Any:
        """What `solve` should answer at N = `n`, as JSON shows it."""
        return plain(evaluate(self.expected, n=n))


class Exhibit(BaseModel):
    """What training.py shows on real processes: a gradient that weigh calls wrong by `rule`, or a reported number.

    A metric exhibit prints {"kind", "reported", "rows"} on rank 0, where rows are the [sum, count] pairs of all ranks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["gradient", "metric"]
    rule: Slug | None = None
    objective: Slug = "token-mean"
    processes: int = Field(default=2, ge=1, le=4)

    @model_validator(mode="after")
    def _rule_of_a_gradient(self) -> Exhibit:
        if (self.kind == "gradient") is (self.rule is None):
            raise ValueError("a gradient exhibit names the rule that weigh must find, and a metric exhibit names none")
        return self


class Facts(BaseModel):
    """What case.toml says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, StringConstraints(pattern=r"^WB-\d{4}$")]
    reference: Text | None = None
    title: Text
    family: Text
    group: Slug
    contract: Text
    root_cause: Text
    failure: Text
    approach: Text
    approach_fails: Text
    repair: Text
    matters: Text
    out_of_scope: Text
    reports: list[Annotated[str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)?#\d+$")]] = Field(min_length=1)
    related: list[Slug] = []
    exhibit: Exhibit | None = None
    tolerance: float = Field(default=0.0, ge=0.0, le=1e-6)
    variants: list[Annotated[int, Field(ge=1)]] = Field(min_length=3)
    fixtures: list[Fixture] = Field(min_length=5)

    @model_validator(mode="after")
    def _distinct(self) -> Facts:
        labels = [fixture.label for fixture in self.fixtures]
        lists = {"fixture labels": labels, "variants": [str(n) for n in self.variants], "reports": self.reports}
        for what, items in lists.items():
            repeated = {item for item in items if items.count(item) > 1}
            if repeated:
                raise ValueError(f"{what} are given twice: {sorted(repeated)}")
        return self


@dataclass(frozen=True)
class Entry:
    """An entry: its name (its folder's), its facts, the sources of its programs and of its exhibit.

    `exhibited` is what the exhibit showed when it last ran (exhibit.json, written by tests/exhibits).
    """

    name: str
    facts: Facts
    sources: dict[Implementation, str]
    exhibit: str | None = None
    exhibited: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        return self.facts.title


def load_entry(folder: Path) -> Entry:
    """The entry in `folder`. Raises InputError for a file that is missing or breaks the format."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", folder.name):
        raise InputError(
            f"The folder is called {folder.name!r}. An entry's name is lower-case words joined by hyphens."
        )
    facts = _read_facts(folder / "case.toml")
    sources = {which: _read_source(folder / f"{which}.py") for which in Implementation}
    shown = folder / "exhibit.json"
    exhibited = json.loads(shown.read_text("utf-8")) if shown.exists() else None
    return Entry(folder.name, facts, sources, _read_exhibit(folder, facts), exhibited)


def _read_facts(path: Path) -> Facts:
    try:
        facts = Facts.model_validate(tomllib.loads(path.read_text("utf-8")))
        for fixture in facts.fixtures:
            fixture.given(facts.variants[0])
            fixture.answer(facts.variants[0])
        return facts
    except FileNotFoundError:
        raise InputError(
            f"{path} is not there. An entry has case.toml, failing.py, unsuccessful.py and repair.py. Add it."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} can't be read as TOML: {error}. Correct the file.") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the entry"
        raise InputError(
            f"{path}: {where}: {first['msg']}. docs/adding-a-case.md lists what each field holds."
        ) from error


def _read_exhibit(folder: Path, facts: Facts) -> str | None:
    path = folder / "training.py"
    if path.exists() is (facts.exhibit is None):
        raise InputError(f"{folder} has training.py or [exhibit] in case.toml, not both. They belong together.")
    if not path.exists():
        return None
    tree = _parse(path)
    _refuse_imports(path, tree, allowed={"torch"})
    return path.read_text("utf-8")


def _read_source(path: Path) -> str:
    tree = _parse(path)
    solves = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "solve"]
    if len(solves) != 1 or len(solves[0].args.args) != 1:
        raise InputError(f"{path} has no function solve of one argument. A catalogue program is one `def solve(...)`.")
    _refuse_imports(path, tree, allowed=set())
    return path.read_text("utf-8")


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path} is not there. An entry has failing.py, unsuccessful.py and repair.py. Add it."
        ) from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a Python program: {error}. Correct the file.") from error


def _refuse_imports(path: Path, tree: ast.Module, *, allowed: set[str]) -> None:
    for module in _imported(tree):
        if module not in sys.stdlib_module_names | allowed:
            raise InputError(f"{path} imports {module}. Catalogue programs use the standard library only.")


def _imported(tree: ast.Module) -> list[str]:
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append("." if node.level else (node.module or "").split(".")[0])
    return modules
