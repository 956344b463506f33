"""Searches a written site for what its tier must not show.

It reads what a reader could: every file as it is, the text of pages without their markup (a highlighter splits a line
into many elements), strings inside JSON as they are meant, and every member of a bundle.
"""

from __future__ import annotations

import html
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["find_leaks", "readable_texts"]


def find_leaks(site: Path, secrets: Iterable[str]) -> list[tuple[str, str]]:
    """Each (file, secret) where a secret can be read; blanks and line breaks don't hide one."""
    wanted = sorted({_squeezed(secret) for secret in secrets} - {""})
    leaks = set()
    for name, text in readable_texts(site):
        squeezed = _squeezed(text)
        leaks |= {(name, secret) for secret in wanted if secret in squeezed}
    return sorted(leaks)


def readable_texts(site: Path) -> Iterator[tuple[str, str]]:
    """Every text of the site with the name of its file; bundles and JSON opened."""
    for path in sorted(site.rglob("*")):
        if path.is_file():
            yield from _texts(str(path.relative_to(site)), path.read_bytes())


def _texts(name: str, content: bytes) -> Iterator[tuple[str, str]]:
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            for member in bundle.namelist():
                yield from _texts(f"{name}!{member}", bundle.read(member))
        return
    text = content.decode("utf-8", "replace")
    yield name, text
    if name.endswith((".html", ".svg")):
        yield name, html.unescape(re.sub(r"<[^>]*>", "", text))
    if name.endswith(".json"):
        yield name, "\n".join(_strings(json.loads(text)))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)
