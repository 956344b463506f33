"""Where numbers leave a training run: the loggers whose numbers are weighed.

Each entry names the module that defines the logger and a function that hooks it once that module is imported, so that
nothing is imported for the sake of weighing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weighbridge.weigh.imports import when_imported

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["install"]

_LIGHTNING = "trainer.connectors.logger_connector.logger_connector"


def install(weigher: Weigher) -> None:
    """Hook the loggers when their modules are imported."""
    watch = functools.partial(_watch, weigher)
    watch("transformers.trainer", "Trainer", "log", "transformers.Trainer.log", _first_mapping)
    for package in ("lightning.pytorch", "pytorch_lightning"):
        watch(
            f"{package}.{_LIGHTNING}",
            "_LoggerConnector",
            "log_metrics",
            "lightning.Logger.log_metrics",
            _lightning_metrics,
        )
    for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        watch(module, "SummaryWriter", "add_scalar", "SummaryWriter.add_scalar", _tag_and_value)
        watch(module, "SummaryWriter", "add_scalars", "SummaryWriter.add_scalars", _tags_and_values)
    watch("wandb.sdk.wandb_run", "Run", "log", "wandb.log", _first_mapping)
    when_imported("trl.trainer.utils", functools.partial(_mark_trl_losses, weigher))


Extract = Callable[[Any, tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]


def _watch(weigher: Weigher, module_name: str, class_name: str, method: str, source: str, extract: Extract) -> None:
    def hook(module: Any) -> None:
        owner = getattr(module, class_name, None)
        original = getattr(owner, method, None)
        if original is None:
            return

        @functools.wraps(original)
        def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
            if weigher.probe is not None and not weigher.reporting:
                # One number that passes through several loggers is one number, under the name the user gave it.
                weigher.reporting = True
                try:
                    for name, value in extract(self, args, kwargs).items():
                        weigher.report(str(name), value, source)
                    return original(self, *args, **kwargs)
                finally:
                    weigher.reporting = False
            return original(self, *args, **kwargs)

        setattr(owner, method, watched)

    when_imported(module_name, hook)


def _first_mapping(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    found = args[0] if args else kwargs.get("logs", kwargs.get("data"))
    return found if isinstance(found, Mapping) else {}


def _lightning_metrics(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    metrics = args[0] if args else kwargs.get("metrics")
    if not isinstance(metrics, Mapping) or not self.trainer.loggers:
        return {}
    return {name: value for name, value in metrics.items() if name != "epoch"}


def _tag_and_value(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    tag = args[0] if args else kwargs.get("tag")
    value = args[1] if len(args) > 1 else kwargs.get("scalar_value")
    return {str(tag): value}


def _tags_and_values(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
    main = args[0] if args else kwargs.get("main_tag")
    values = args[1] if len(args) > 1 else kwargs.get("tag_scalar_dict")
    return {f"{main}/{tag}": value for tag, value in values.items()} if isinstance(values, Mapping) else {}


def _mark_trl_losses(weigher: Weigher, module: Any) -> None:
    """TRL's trainers compute per-token log-probabilities in a kernel of their own; the probe joins its output."""
    original = getattr(module, "FusedCausalLMOutput", None)
    if original is None:
        return

    @functools.wraps(original, updated=())
    def output(*args: Any, **kwargs: Any) -> Any:
        log_probs, mask = kwargs.get("log_probs"), kwargs.get("label_mask")
        if log_probs is not None and mask is not None:
            losses = weigher.mark(-log_probs, mask, "log_probs", None)
            kwargs["log_probs"] = -losses
        return original(*args, **kwargs)

    module.FusedCausalLMOutput = output
