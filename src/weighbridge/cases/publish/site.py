"""Writes the catalogue as a static site of one tier.

The programs are run for it, so no page can show what is no longer so. Before it is done, the open tier is searched for
what it must not show; a leak is an error, and the site is not left behind.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import shutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from weighbridge import __version__
from weighbridge.cases.entry import Entry, Implementation
from weighbridge.cases.publish.content import Shown, entry_bundle, entry_json, show_entry, show_exhibit
from weighbridge.cases.publish.leaks import find_leaks
from weighbridge.cases.publish.tiers import Tier, exhibit_lines, telling_lines
from weighbridge.cases.record import schema
from weighbridge.cases.terminal import shown_value
from weighbridge.cases.verify import Verified, verify_entries
from weighbridge.errors import InputError, RecordError

__all__ = ["publish_site", "secrets_of"]

_LIGHT, _DARK = "friendly", "github-dark"


def publish_site(entries: Sequence[Entry], *, tier: Tier, out: Path) -> int:
    """Runs every program and writes the site to `out`, a new or empty folder; returns the number of entries."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(
            f"{out} is not empty. The site is written to a new or empty folder. Name another, or empty it."
        )
    return write_site(verify_entries(entries), tier=tier, out=out)


def write_site(verified: Sequence[Verified], *, tier: Tier, out: Path) -> int:
    """Writes the site from runs that were made already."""
    by_name = {one.entry.name: one.entry for one in verified}
    out.mkdir(parents=True, exist_ok=True)
    shown = [
        show_entry(one, tier, [by_name[name] for name in one.entry.facts.related if name in by_name])
        for one in verified
    ]
    environment = _environment(tier)
    for folder in ("entries", "data", "bundles"):
        (out / folder).mkdir()
    for one, run in zip(shown, verified, strict=True):
        _write_entry(environment, out, one, run)
    page = environment.get_template("index.html").render(
        root="",
        shown=shown,
        families=sorted({one.entry.facts.family for one in shown}),
        holding=sum(run.holds for run in verified),
        runs=sum(len(run.records) for run in verified),
    )
    _write(out / "index.html", page)
    _write(out / "catalogue.json", _json({"tier": tier.value, "entries": [entry_json(one) for one in shown]}))
    _write(out / "record.schema.json", _json(schema()))
    _write(out / "site.css", _asset("site.css") + _code_styles())
    _write(out / "site.js", _asset("site.js"))
    if tier is Tier.OPEN:
        _refuse_leaks(out, verified)
    return len(shown)


def secrets_of(verified: Verified) -> list[str]:
    """What the open tier must not show of an entry: the telling lines of its repair, its prose, and every digest."""
    records = [record for (_, which), record in verified.records.items() if which is Implementation.REPAIR]
    digests = [digest for record in records for digest in (record.digest, record.source_sha256)]
    digests.append(hashlib.sha256(verified.entry.sources[Implementation.REPAIR].encode()).hexdigest())
    return [*telling_lines(verified.entry), *exhibit_lines(verified.entry), verified.entry.facts.repair, *digests]


def _refuse_leaks(out: Path, verified: Sequence[Verified]) -> None:
    leaks = find_leaks(out, [secret for one in verified for secret in secrets_of(one)])
    if leaks:
        shutil.rmtree(out)
        name, secret = leaks[0]
        raise RecordError(
            f"{name} shows {secret!r}, which is part of a repair ({len(leaks)} places in all). The open tier holds "
            "repairs back, so nothing was written. Reword the entry, or name its variables so that no line is shared."
        )


def _write_entry(environment: Environment, out: Path, one: Shown, run: Verified) -> None:
    bundle = entry_bundle(one)
    enforced = next(iter(run.records.values())).environment.enforced
    page = environment.get_template("entry.html").render(
        root="../",
        one=one,
        holds=run.holds,
        exhibits=show_exhibit(one),
        enforced=", ".join(f"{key} {value}" for key, value in enforced.items()),
        bundle_sha256=hashlib.sha256(bundle).hexdigest(),
    )
    _write(out / "entries" / f"{one.entry.name}.html", page)
    _write(out / "data" / f"{one.entry.name}.json", _json(entry_json(one)))
    (out / "bundles" / f"{one.entry.name}.zip").write_bytes(bundle)


def _environment(tier: Tier) -> Environment:
    environment = Environment(
        loader=PackageLoader("weighbridge.cases.publish"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["python"] = _python
    environment.filters["value"] = shown_value
    environment.globals |= {
        "tier": tier.value,
        "version": __version__,
        "python": platform.python_version(),
        "day": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    return environment


def _python(source: str) -> Markup:
    """Python source as highlighted HTML; Pygments escapes it."""
    return Markup(highlight(source, PythonLexer(stripnl=False), HtmlFormatter(cssclass="highlight")))


def _code_styles() -> str:
    """Pygments' colours, for light and for dark; the background is the page's own."""
    light, dark = (_style_definitions(style) for style in (_LIGHT, _DARK))
    return f"\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _style_definitions(style: str) -> str:
    formatter: Any = HtmlFormatter(style=style, nobackground=True)
    return str(formatter.get_style_defs(".highlight"))


def _asset(name: str) -> str:
    return resources.files("weighbridge.cases.publish").joinpath("assets", name).read_text("utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
