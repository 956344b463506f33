"""The framework's own words for a remedy."""

from __future__ import annotations

import pytest

from weighbridge.advice import ADVICE, framework_of, with_advice
from weighbridge.outcome import Gradient, Verdict
from weighbridge.rules import rule_of


@pytest.mark.parametrize(("framework", "rule"), ADVICE)
def test_advice_is_for_a_rule_that_exists(framework: str, rule: str) -> None:
    assert rule_of(rule).id == rule
    assert framework.split(" ")[0] in ("transformers", "accelerate", "lightning")


def test_wrong_finding_gets_its_frameworks_sentence_once() -> None:
    wrong = Gradient(verdict=Verdict.WRONG, rule="mean-of-rank-means", remedy="Divide by all.")
    advised = with_advice(wrong, "transformers")
    assert advised.remedy.startswith("Divide by all. With the transformers Trainer: set average_tokens_across_devices")
    assert with_advice(advised, "transformers") == advised


def test_right_finding_and_unknown_framework_stay_as_they_are() -> None:
    right = Gradient(verdict=Verdict.RIGHT, rule="token-mean")
    assert with_advice(right, "transformers") == right
    wrong = Gradient(verdict=Verdict.WRONG, rule="mean-of-rank-means")
    assert with_advice(wrong, None) == wrong


@pytest.mark.parametrize(
    ("sources", "versions", "framework"),
    [
        (["transformers.Trainer.log"], {"accelerate": "1", "transformers": "5"}, "transformers"),
        (["lightning.Logger.log_metrics"], {"lightning": "2"}, "lightning"),
        ([], {"accelerate": "1"}, "accelerate"),
        ([], {"accelerate": "1", "transformers": "5"}, None),
        ([], {"torch": "2"}, None),
    ],
)
def test_framework_shows_by_logger_and_imports(
    sources: list[str], versions: dict[str, str], framework: str | None
) -> None:
    assert framework_of(sources, versions) == framework
