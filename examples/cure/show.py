"""Weigh every pair of this folder, before and after, and write what came out into docs/cure.md and README.md.

    python examples/cure/show.py            all pairs, two to three minutes
    python examples/cure/show.py ddp trl    some of them

A block between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced; everything else in the pages is written by
hand.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pairs import FOLDER, PAIRS, Pair

ROOT = FOLDER.parents[1]
PAGES = ("docs/cure.md", "README.md")
EXIT = {"wrong": 1, "right": 0}


def weighed(pair: Pair, kind: str) -> dict[str, Any]:
    """What `weighbridge weigh --json` finds; stops the script where it is not what the program's name says."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "weights.json"
        command = ["weighbridge", "weigh", "--json", str(target), "--", *pair.command(kind)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode != EXIT[kind]:
            raise SystemExit(f"{pair.name}_{kind}.py was weighed with exit status {done.returncode}.\n{done.stdout}")
        found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        return found


def block(pair: Pair, before: dict[str, Any], after: dict[str, Any]) -> str:
    """The diff, and the weights of one step before and after."""
    versions = before["versions"]
    used = ", ".join(f"{name} {versions[name].split('+')[0]}" for name in pair.packages)
    lines = ["```diff", *pair.diff(), "```", "", *table(before, after), ""]
    lines.append(f"- Gradient: **{said(before['gradient'])}** before, {said(after['gradient'])} after.")
    for number, cured in zip(before["reported"], after["reported"], strict=True):
        lines.append(f"- Logged `{number['name']}`: **{said(number)}** before, {said(cured)} after.")
    lines.append(f"- {used}; `{' '.join(pair.command('wrong'))}`")
    return "\n".join(lines) + "\n"


def table(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The step whose weights before lie furthest apart; both programs are fed the same batches."""
    steps: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for one, other in zip(before["gradient"]["pieces"], after["gradient"]["pieces"], strict=True):
        same = [one[key] == other[key] for key in ("step", "rank", "microbatch", "tokens")]
        assert all(same), "the two programs were not fed the same batches"
        steps.setdefault(one["step"], []).append((one, other))
    shown = max(steps.values(), key=lambda step: max(abs(one["relative_weight"] - 1) for one, _ in step))
    lines = ["| rank | microbatch | tokens | weight before | weight after |", "|---:|---:|---:|---:|---:|"]
    for one, other in shown:
        weights = f"{one['relative_weight']:.4f} | {other['relative_weight']:.4f}"
        lines.append(f"| {one['rank']} | {one['microbatch']} | {one['tokens']} | {weights} |")
    return lines


def said(judged: dict[str, Any]) -> str:
    """A verdict with its rule."""
    return f"{judged['verdict']}, {judged['rule']}"


def blocks_of(text: str) -> dict[str, str]:
    """The generated blocks of a page, by name."""
    found = re.finditer(r"<!-- begin (\w+) -->\n(.*?)<!-- end \1 -->", text, re.DOTALL)
    return {match[1]: match[2] for match in found}


def written(text: str, blocks: dict[str, str]) -> str:
    """The page with these blocks in place of the old ones."""
    for name, old in blocks_of(text).items():
        frame = "<!-- begin {0} -->\n{1}<!-- end {0} -->"
        text = text.replace(frame.format(name, old), frame.format(name, blocks.get(name, old)))
    return text


def main(names: list[str]) -> None:
    """Weigh the named pairs, or all, and write their blocks."""
    blocks = {}
    for pair in PAIRS:
        if not names or pair.name in names:
            print(f"weighing {pair.name}", flush=True)
            blocks[pair.name] = block(pair, weighed(pair, "wrong"), weighed(pair, "right"))
    for page in PAGES:
        path = ROOT / page
        path.write_text(written(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
