"""Numbers on their way to a logger: a right and a wrong one beside a right gradient, in every manner of logging."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from weighing import Weighed, script, weigh

pytestmark = pytest.mark.launch

MEAN = "mean-of-microbatch-means"


def check(found: Weighed, expected: dict[str, str], source: str) -> None:
    """The gradient is right, and each number in `expected` has that rule."""
    assert found.gradient["verdict"] == "right", found.stdout + found.stderr
    for name, rule in expected.items():
        number = found.reported(name)
        assert (name, number["rule"]) == (name, rule)
        assert number["verdict"] == ("right" if rule == "token-mean" else "wrong")
        assert number["source"] == source
    assert found.exit_code == (1 if set(expected.values()) != {"token-mean"} else 0)
    assert found.json["problems"] == []


def test_reported_numbers_in_many_manners(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("logs.py", "report"))
    right = dict.fromkeys(["right", "rounded", "perplexity", "every_third"], "token-mean")
    check(found, {**right, "wrong": MEAN}, "weighbridge.report")
    assert found.reported("every_third")["window"] == 3
    assert "exponential" in found.reported("perplexity")["reason"]
    assert found.json["unrelated"] == ["grad_norm", "lr"]
    assert found.json["command_exit_code"] is None  # math.exp of the traced loss did not overflow


def test_a_summary_writer(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("logs.py", "tensorboard"))
    check(found, {"right": "token-mean", "wrong": MEAN}, "SummaryWriter.add_scalar")
    assert found.json["unrelated"] == ["grad_norm", "lr"]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("logs.py", "wandb"), environment={"WANDB_SILENT": "true"})
    check(found, {"right": "token-mean", "wrong": MEAN}, "wandb.log")
    assert found.json["unrelated"] == ["grad_norm", "lr"]


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_a_lightning_logger(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("lightning_logs.py"))
    check(found, {"right": "token-mean", "wrong": "sequence-mean"}, "lightning.Logger.log_metrics")
    assert found.json["unrelated"] == ["lr"]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_trainer_and_a_number_of_the_users_own(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("trainer_logs.py", "--folder", str(tmp_path / "out")))
    assert found.gradient["verdict"] == "right", found.stdout + found.stderr
    assert found.reported("loss")["verdict"] == "right"
    own = found.reported("own")
    assert (own["verdict"], own["rule"], own["source"]) == ("wrong", MEAN, "transformers.Trainer.log")
    assert {"grad_norm", "learning_rate"} <= set(found.json["unrelated"])


def test_what_ranks_log_each_in_its_own_way(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("logs_of_ranks.py"))
    right = dict.fromkeys(["global", "global/rank1", "only_rank_0"], "token-mean")
    check(found, {**right, "local": "single-rank-only"}, "weighbridge.report")
    assert [found.reported(name)["rank"] for name in ("global", "global/rank1", "local")] == [0, 1, 0]


@pytest.mark.parametrize("guard", ["guarded", "guarded-late"])
def test_a_guard_against_loss_spikes_gives_no_false_alarm(guard: str, tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("logs.py", guard))
    assert "loss spike in step 1: skipped" in found.stdout
    check(found, {"right": "token-mean", "wrong": MEAN}, "weighbridge.report")
    assert any("as a guard against loss spikes does" in note for note in found.json["notes"])


def test_ranks_that_skip_a_step_together_give_no_false_alarm(tmp_path: Path) -> None:
    found = weigh(tmp_path, *script("bad_run.py", "guarded", "--spawn", "2"), options=("--steps", "3"))
    check(found, {"loss": "token-mean"}, "weighbridge.report")
    assert (found.json["steps"], found.json["microbatches"]) == (3, 2)
    assert any("as a guard against loss spikes does" in note for note in found.json["notes"])
