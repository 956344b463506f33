"""Source bundles that have the same bytes every time.

Members are sorted, stored without compression (whose bytes depend on the zlib at hand), and carry one fixed date.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

__all__ = ["make_bundle"]

_DATE = (1980, 1, 1, 0, 0, 0)


def make_bundle(files: Mapping[str, bytes]) -> bytes:
    """A zip of `files`, name to content."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as bundle:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _DATE)
            member.create_system = 3  # Unix, on every machine
            member.external_attr = 0o644 << 16
            bundle.writestr(member, files[name])
    return held.getvalue()
