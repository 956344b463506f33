"""Every framework by its own launcher, code untouched: right programs are right, wrong ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from weighing import Weighed, torchrun, weigh

pytestmark = pytest.mark.launch

MEAN = "mean-of-microbatch-means"
ACCELERATE = ["accelerate", "launch", "--multi_gpu", "--num_processes", "2"]

# Command, the gradient's rule, the logged number and its rule.
CELLS = {
    "plain wrong": (["python", "examples/plain.py"], MEAN, "loss", MEAN),
    "plain right": (["python", "examples/plain.py", "--loss", "token-mean"], "token-mean", "loss", "token-mean"),
    "own workers": (["python", "examples/spawn.py"], MEAN, "loss", MEAN),
    "ddp wrong": (torchrun("examples/ddp.py"), MEAN, "loss", MEAN),
    "ddp right": (torchrun("examples/ddp.py", "--loss", "token-mean"), "token-mean", "loss", "token-mean"),
    "ddp right, three ranks": (
        torchrun("examples/ddp.py", "--loss", "token-mean", "--optimizer", "SGD", ranks=3),
        "token-mean",
        "loss",
        "token-mean",
    ),
    "fsdp2 wrong": (torchrun("examples/fsdp2.py"), MEAN, "loss", MEAN),
    "fsdp2 right": (
        torchrun("examples/fsdp2.py", "--loss", "token-mean", "--checkpointing"),
        "token-mean",
        "loss",
        "token-mean",
    ),
    "fsdp2 on a 2-D mesh": (
        torchrun("examples/fsdp2.py", "--loss", "token-mean", "--mesh", "2d", ranks=4),
        "token-mean",
        "loss",
        "token-mean",
    ),
    "fsdp1 wrong": (torchrun("examples/fsdp1.py", "--original"), MEAN, "loss", MEAN),
    "fsdp1 right": (torchrun("examples/fsdp1.py", "--loss", "token-mean"), "token-mean", "loss", "token-mean"),
    "accelerate wrong": ([*ACCELERATE, "examples/accelerate_loop.py"], MEAN, "loss", MEAN),
    "accelerate right": (
        [*ACCELERATE, "examples/accelerate_loop.py", "--loss", "token-mean"],
        "token-mean",
        "loss",
        "token-mean",
    ),
    "trainer right": (torchrun("examples/trainer.py"), "token-mean", "loss", "token-mean"),
    "trainer wrong": (
        torchrun("examples/trainer.py", "--average-tokens-across-devices", "false"),
        "mean-of-rank-means",
        "loss",
        "mean-of-rank-means",
    ),
    "trainer with lora": (torchrun("examples/trainer.py", "--lora"), "token-mean", "loss", "token-mean"),
    "trl right": (torchrun("examples/trl_sft.py"), "token-mean", "loss", "token-mean"),
    "trl wrong": (
        torchrun("examples/trl_sft.py", "--average-tokens-across-devices", "false"),
        "mean-of-rank-means",
        "loss",
        "mean-of-rank-means",
    ),
    "zero 1": (torchrun("examples/deepspeed_zero.py", "--stage", "1"), MEAN, "loss", MEAN),
    "zero 2": (torchrun("examples/deepspeed_zero.py", "--stage", "2"), MEAN, "loss", MEAN),
    "zero 3": (torchrun("examples/deepspeed_zero.py", "--stage", "3"), MEAN, "loss", MEAN),
    "zero 2 right": (
        torchrun("examples/deepspeed_zero.py", "--stage", "2", "--loss", "token-mean"),
        "token-mean",
        "loss",
        "token-mean",
    ),
    "lightning": (["python", "examples/lightning_run.py"], MEAN, "train_loss", "last-microbatch-only"),
}


def check(found: Weighed, rule: str, name: str, reported_rule: str) -> None:
    wrong = rule != "token-mean" or reported_rule != "token-mean"
    assert found.json, found.stderr
    assert found.gradient["rule"] == rule, found.stdout + found.stderr
    assert found.gradient["verdict"] == ("right" if rule == "token-mean" else "wrong")
    assert found.reported(name)["rule"] == reported_rule, found.stdout
    assert found.exit_code == (1 if wrong else 0), found.stdout
    assert found.json["problems"] == []


@pytest.mark.parametrize("cell", CELLS)
def test_framework(cell: str, tmp_path: Path) -> None:
    command, rule, name, reported_rule = CELLS[cell]
    check(weigh(tmp_path, *command), rule, name, reported_rule)


def test_bfloat16_reduction_says_what_it_cannot_see(tmp_path: Path) -> None:
    found = weigh(tmp_path, *torchrun("examples/fsdp2.py", "--loss", "token-mean", "--reduce", "bfloat16"))
    assert found.gradient["rule"] == "token-mean"
    assert found.gradient["precision"]["right_within"] > 1e-3
    assert "One token" in found.gradient["precision"]["derivation"]


def test_evaluation_loss_is_judged_apart_from_training(tmp_path: Path) -> None:
    found = weigh(tmp_path, *torchrun("examples/trainer.py", "--eval-steps", "2"))
    assert found.gradient["verdict"] == "right"
    assert found.reported("loss")["verdict"] == "right"
    evaluation = found.reported("eval_loss")
    assert evaluation["phase"] == "evaluation"
    # Eleven items on two ranks: the sampler repeats one, and the Trainer cuts its loss off again.
    assert (evaluation["verdict"], evaluation["rule"]) == ("wrong", "weighted-by-sequences")
    assert "other terms" not in evaluation["reason"], "the rule must give the values, not only up to an offset"
