"""The `--json` file: fixed keys, valid JSON, written whole."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

import outcomes
from weighbridge.errors import InputError
from weighbridge.outcome import Outcome
from weighbridge.reports.json import check_writable, to_json, write_json, write_whole


def test_the_file_has_the_fixed_keys_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    write_json(outcomes.wrong(), path)
    text = path.read_text()
    assert text.endswith("}\n")
    data = json.loads(text)
    assert data["schema"] == "weighbridge.weights/1"
    assert data["gradient"]["pieces"][0] == {
        "step": 4, "rank": 0, "microbatch": 0, "tokens": 26, "loss_sum": 108.16, "relative_weight": 1.3387,
        "sequences": None, "inferred": False,
    }  # fmt: skip
    assert data["reported"][0]["source"] == "transformers.Trainer.log"
    assert Outcome.model_validate(data) == outcomes.wrong()


def test_nan_becomes_null() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    data = json.loads(to_json(outcomes.with_nan()), parse_constant=refuse)
    assert [piece["relative_weight"] for piece in data["gradient"]["pieces"]] == [None, 0.0, -1.5, None]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\udcff")
    assert path.read_text() == "old"
    assert [other.name for other in tmp_path.iterdir()] == ["weights.json"]


def test_permissions_are_those_of_a_file_written_the_usual_way(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    write_whole(tmp_path / "ours", "text")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


@pytest.mark.parametrize(
    ("path", "message"),
    [("missing/weights.json", "No such file"), (".", "is a folder"), ("file/weights.json", "can't be written")],
)
def test_what_cannot_be_written_is_said_before_anything_runs(path: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=message) as caught:
        check_writable(tmp_path / path, "--json")
    assert "Pass another file to --json." in str(caught.value)


def test_a_device_is_written_to_and_never_replaced() -> None:
    check_writable(Path("/dev/null"), "--json")
    write_whole(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
