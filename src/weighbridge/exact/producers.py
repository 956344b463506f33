"""From what a user has (a list, a numpy array, a torch tensor on any device) to the lanes of its exact sum.

A float16, bfloat16 or float32 value goes to the narrow layout, a float64 value or a Python float to the wide one, and
integers and booleans (hits, lengths) to the one that holds them exactly. The producer is chosen by where the values are
and how many they are; all of them are exact.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from weighbridge.errors import InputError
from weighbridge.exact import with_numpy
from weighbridge.exact.layout import NARROW, WIDE, carry_limbs
from weighbridge.exact.products import exact_products

if TYPE_CHECKING:
    import torch

__all__ = ["Lanes", "add_lanes", "available_producers", "exact_lanes", "weighted_lanes", "widen_lanes"]

Lanes: TypeAlias = "npt.NDArray[np.int64] | torch.Tensor"
NUMBA = "weighbridge.exact.with_numba"
WORTH_LOADING = 1 << 21  # values after which numba, which takes a second to load, has paid for itself
A_CALL = 25_000  # values that take as long as a call does before it comes to any
SMALL = 1 << 15  # up to here numpy is faster than plain torch
NARROW_INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16")
FLOATS = ("float32", "float64")
WIDE_INTEGERS = ("int32", "uint32")
INTEGER_LIMIT = 1 << 53


@functools.cache
def available_producers() -> tuple[str, ...]:
    """Names of the producers that can run here, the preferred one first."""
    optional = tuple(name for name in ("numba", "torch") if importlib.util.find_spec(name) is not None)
    return (*optional, "numpy")


def is_tensor(values: object) -> bool:
    """Whether `values` is a torch tensor; doesn't import torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def exact_lanes(values: Any, mask: Any = None, *, producer: str = "auto") -> Lanes:
    """The exact sum of `values` where `mask` is true, and how many those were.

    Args:
        values: per-token values, any shape: a torch tensor, a numpy array, a list or a number.
        mask: the same shape, bool (or 0 and 1, where the values are on the host); None counts everything.
        producer: "numba", "torch" or "numpy" to insist on one; "auto" chooses.

    Returns:
        int64 lanes [13] or [70]: a numpy array, or a tensor on the device of `values` unless that is the CPU.

    Raises:
        InputError: the shapes differ, the mask isn't 0 and 1, or the type can't be summed exactly.
    """
    if is_tensor(values) and values.device.type != "cpu":
        tensor, kept = _device_operands(values, mask)
        return _torch_lanes(tensor, kept)
    array, kept = _host_operands(values, mask)
    return _host_lanes(array, kept, producer)


def weighted_lanes(values: Any, weights: Any, mask: Any = None) -> tuple[Lanes, Lanes]:
    """The exact sum of weight * value, and that of the weights, over the items whose weight is not 0.

    Each product is exact: two float32 make one float64; two float64 make two. A negative, NaN or infinite weight is
    counted as -inf or NaN in the second result, so that it can be refused without waiting for a device.

    Args:
        values: as for `exact_lanes`.
        weights: the same shape, at least 0.
        mask: as for `exact_lanes`.

    Returns:
        two states of int64 [70].

    Raises:
        InputError: as for `exact_lanes`; or float64 on a device; or a float64 outside 2 ** -400 .. 2 ** 400.
    """
    if is_tensor(values) and values.device.type != "cpu":
        return _weighted_on_device(values, weights, mask)
    array, kept = _host_operands(values, mask)
    factors, _ = _host_operands(weights, None)
    _same_shape(values, weights, "weights")
    if kept is not None:
        array, factors = array[kept], factors[kept]
    if factors.dtype.kind in "iu":
        factors = factors.astype(np.float64)
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    bits: Any = factors.view(np.uint32 if factors.dtype == np.float32 else np.uint64)
    weighs = bits + bits != 0  # by bits: a subnormal weight is one, even where the processor reads it as 0
    if not weighs.all():
        array, factors = array[weighs], factors[weighs]
    negative = np.signbit(factors)
    bad = negative | ~np.isfinite(factors)
    if bad.any():
        factors = np.where(bad, np.where(negative, -np.inf, np.nan), factors)
    high, low = exact_products(array, np.where(bad, 0.0, factors).astype(factors.dtype))
    total = _host_lanes(high, None, "auto")
    if low is not None:
        rest = np.asarray(_host_lanes(low, None, "auto")).copy()
        rest[WIDE.limbs :] = 0  # the second halves are no items of their own
        total = add_lanes(total, rest)
    mass = _host_lanes(factors, None, "auto")
    return total, widen_lanes(mass) if mass.shape[0] == NARROW.lanes else mass


def add_lanes(lanes: Lanes, more: Lanes) -> Lanes:
    """The sum of two states in one layout on one device; carries are moved on, so it can be repeated without end."""
    if is_tensor(lanes):
        from weighbridge.exact import with_torch

        return with_torch.add_lanes_(lanes.clone(), more)  # type: ignore[union-attr]
    merged: npt.NDArray[np.int64] = np.asarray(lanes) + np.asarray(more)
    carry_limbs(merged, NARROW if merged.shape[0] == NARROW.lanes else WIDE)
    return merged


def widen_lanes(lanes: Lanes) -> Lanes:
    """The same sum in the wide layout: int64 [13] -> [70]."""
    if is_tensor(lanes):
        from weighbridge.exact import with_torch

        return with_torch.widen_lanes(lanes)
    wide = np.zeros(WIDE.lanes, dtype=np.int64)
    first = (NARROW.base - WIDE.base) // 32
    wide[first : first + NARROW.limbs] = lanes[: NARROW.limbs]
    wide[WIDE.limbs :] = lanes[NARROW.limbs :]
    return wide


def _host_lanes(array: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, producer: str) -> npt.NDArray[np.int64]:
    if array.dtype in (np.int64, np.uint64):
        return _integer_lanes(array, mask)
    chosen = _choose(array.size) if producer == "auto" else producer
    if chosen == "numba":
        with_numba = sys.modules.get(NUMBA) or importlib.import_module(NUMBA)
        lanes = np.zeros((NARROW if array.dtype == np.float32 else WIDE).lanes, dtype=np.int64)
        with_numba.add_exactly(array, mask, lanes)
        return lanes
    if chosen == "torch":
        import torch

        shared = [each if each is None or each.flags.writeable else each.copy() for each in (array, mask)]
        tensors = [None if each is None else torch.from_numpy(each) for each in shared]
        made: npt.NDArray[np.int64] = _torch_lanes(*tensors).numpy()
        return made
    return with_numpy.exact_lanes(array, mask)


_seen = 0  # values summed without numba so far


def _choose(size: int) -> str:
    global _seen
    if NUMBA in sys.modules:
        return "numba"
    _seen += size + A_CALL
    if _seen >= WORTH_LOADING and "numba" in available_producers():
        return "numba"
    return "torch" if size > SMALL and "torch" in sys.modules else "numpy"


def _integer_lanes(array: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.int64]:
    """64-bit integers as two float64 each: the multiple of 2 ** 32, and the rest."""
    kept = array if mask is None else array[mask]
    rest = kept & kept.dtype.type(0xFFFFFFFF)
    lanes = with_numpy.exact_lanes((kept - rest).astype(np.float64))
    rests = with_numpy.exact_lanes(rest.astype(np.float64))
    rests[WIDE.limbs :] = 0
    return np.asarray(add_lanes(lanes, rests))


def _torch_lanes(values: torch.Tensor, mask: torch.Tensor | None) -> Any:
    from weighbridge.exact import with_torch

    return with_torch.exact_lanes(values, mask)


def _host_operands(values: Any, mask: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Flat contiguous float32, float64 or 64-bit integer values, and a flat bool mask."""
    array = _host_array(values)
    if mask is None:
        return array, None
    _same_shape(values, mask, "mask")
    kept = np.asarray(mask.detach().cpu() if is_tensor(mask) else mask)
    if kept.dtype != np.bool_:
        if kept.size and not np.isin(kept, (0, 1)).all():
            odd = kept[~np.isin(kept, (0, 1))].flat[0]
            raise InputError(f"The mask holds {odd}. A mask is bool, or 0 and 1. Pass other numbers as weights.")
        kept = kept.astype(np.bool_)
    return array, np.ascontiguousarray(kept).reshape(-1)


def _host_array(values: Any) -> npt.NDArray[Any]:
    if is_tensor(values):
        _refuse_distributed(values)
        values = values.detach()
        name = _name(values.dtype)
        if name in FLOATS:
            return values.contiguous().view(-1).numpy()  # type: ignore[no-any-return]
        array = (values.float() if name in NARROW_INTEGERS else values).contiguous().numpy()
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:  # a list of lists of different lengths
            raise InputError(f"The values don't form an array: {error}. Pass one flat list.") from error
        name = array.dtype.name
        if array.size == 0 and not isinstance(values, np.ndarray):
            return np.zeros(0, dtype=np.float64)
    if name in NARROW_INTEGERS:
        array = array.astype(np.float32)
    elif name in WIDE_INTEGERS:
        array = array.astype(np.float64)
    elif name not in ("float32", "float64", "int64", "uint64"):
        raise InputError(
            f"The values are of type {name}. Exact sums are made of float16, bfloat16, float32, float64, integers and "
            "booleans. Convert them first."
        )
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(-1)


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device_operands(values: torch.Tensor, mask: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    import torch

    _refuse_distributed(values)
    name = _name(values.dtype)
    if name in NARROW_INTEGERS:
        values = values.float()
    elif name in WIDE_INTEGERS:
        values = values.double()
    elif name not in ("float32", "float64"):
        raise InputError(f"The values are of type {name}, on {values.device}. Convert them to a float type first.")
    if mask is None:
        return values, None
    _same_shape(values, mask, "mask")
    if not is_tensor(mask) or mask.dtype != torch.bool or mask.device != values.device:
        raise InputError(
            f"The mask is no bool tensor on {values.device}, where the values are. Whether it holds only 0 and 1 can't "
            "be seen without waiting for the device. Pass mask.bool() from the same device."
        )
    return values, mask


def _weighted_on_device(values: torch.Tensor, weights: Any, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    values, kept = _device_operands(values, mask)
    _same_shape(values, weights, "weights")
    factors, _ = _device_operands(weights, None)
    if values.dtype != torch.float32 or factors.dtype != torch.float32:
        raise InputError(
            f"Values and weights are float64 on {values.device}. Exact products of float64 are made on the host. "
            "Pass float32, or move both to the CPU."
        )
    weighs = factors != 0 if kept is None else (factors != 0) & kept
    bad = ~(factors.isfinite() & (factors > 0))
    product = values.double() * torch.where(bad, 0.0, factors).double()
    mass = torch.where(bad, torch.where(factors < 0, -torch.inf, torch.nan), factors)
    return _torch_lanes(product, weighs), _torch_lanes(mass.double(), weighs)


def _refuse_distributed(values: Any) -> None:
    if type(values) is not sys.modules["torch"].Tensor and hasattr(values, "to_local"):
        raise InputError(
            "The values are a DTensor. A sum counts what this rank holds, and a replicated DTensor would count twice. "
            "Pass values.to_local() for shards, or values.full_tensor() on one rank of the mesh."
        )


def _same_shape(values: Any, other: Any, what: str) -> None:
    first, second = tuple(np.shape(values)), tuple(np.shape(other))
    if first != second:
        raise InputError(
            f"The {what} has shape {list(second)} and the values have shape {list(first)}. Each value needs its own "
            "entry. Flatten or expand one of them."
        )
