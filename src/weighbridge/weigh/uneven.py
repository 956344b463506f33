"""`--uneven`: mask labels in the batches that data loaders yield, to counts that tell rules apart.

Even counts hide faults: where every piece has the same number of tokens, a mean of means is the mean. The counts are
drawn by rank and by batch from a fixed list, before any framework counts them; once the microbatches of a step are
known, one rank's piece is left without any label.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weighbridge.weigh.process import place

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["install", "mask_labels"]

LABELS = ("labels", "label", "targets", "target", "label_ids", "y")
IGNORED = -100
# Shares of the labels that stay; no two neighbours, in time or by rank, have one ratio to each other.
SHARES = (0.31, 0.83, 0.17, 0.59, 0.97, 0.43, 0.71, 0.23, 0.89, 0.53, 0.11)


def install(weigher: Weigher) -> None:
    """Hook the iterators of torch.utils.data.DataLoader."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    original = _BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def next_uneven(self: Any) -> Any:
        batch = original(self)
        if not weigher.enabled or torch.utils.data.get_worker_info() is not None:
            return batch
        number = getattr(self, "_weighbridge_batch", 0)
        self._weighbridge_batch = number + 1
        rank, world_size = place()
        # One batch, once a step is known to have several pieces; loaders may be some batches ahead of the step.
        empty = (
            number >= 2
            and rank == world_size - 1
            and world_size * weigher.pieces_per_rank > 1
            and not getattr(self, "_weighbridge_emptied", False)
        )
        self._weighbridge_emptied = empty or getattr(self, "_weighbridge_emptied", False)
        share = 0.0 if empty else SHARES[(number * 3 + rank * 4) % len(SHARES)]
        return mask_labels(weigher, batch, share, number)

    _BaseDataLoaderIter.__next__ = next_uneven


def mask_labels(weigher: Weigher, batch: Any, share: float, number: int) -> Any:
    """`batch` with `share` of its labels left; a note, once, where no labels can be masked."""
    labels = _find_labels(batch)
    if labels is None or labels.is_floating_point() or labels.dtype == torch.bool:
        if number == 0:
            weigher.recorder.write(
                "note",
                text="--uneven found no integer labels in the data loader's batches: the counts are those of the data.",
            )
        return batch
    masked = labels.clone()
    _keep_share(masked, share, number)
    return _replaced(batch, labels, masked)


def _keep_share(labels: Tensor, share: float, number: int) -> None:
    """Mask in place: in each row of [B, T] the last labels, of [B] the last rows; rows keep different shares."""
    rows = labels if labels.dim() > 1 else labels[None]
    for index, row in enumerate(rows):
        flat = row.reshape(-1)
        counted = torch.nonzero(flat != IGNORED).flatten()
        of_row = share if labels.dim() <= 1 else share * SHARES[(index * 2 + number) % len(SHARES)] / max(SHARES)
        keep = int(len(counted) * of_row) if share == 0 else max(1, round(len(counted) * of_row))
        flat[counted[keep:]] = IGNORED
        row.copy_(flat.reshape(row.shape))


def _find_labels(batch: Any) -> Tensor | None:
    if isinstance(batch, Mapping):
        return next((batch[key] for key in LABELS if isinstance(batch.get(key), Tensor)), None)
    if isinstance(batch, (tuple, list)) and len(batch) >= 2 and isinstance(batch[-1], Tensor):
        return batch[-1]
    return None


def _replaced(batch: Any, labels: Tensor, masked: Tensor) -> Any:
    if isinstance(batch, Mapping):
        for key in LABELS:
            if batch.get(key) is labels:
                batch[key] = masked  # type: ignore[index]
        return batch
    parts = [*batch[:-1], masked]
    return type(batch)(parts) if isinstance(batch, list) or type(batch) is tuple else type(batch)(*parts)
