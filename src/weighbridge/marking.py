"""`mark` and `report`: two functions for a training script that tell weighbridge what it can't see by itself.

Without a weighing both return at once: `mark` gives back what it was given, and nothing is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from weighbridge.weigh.weigher import Weigher

__all__ = ["mark", "report"]

T = TypeVar("T")

weigher: Weigher | None = None  # set in the processes of a weighed command


def mark(losses: T, mask: Any = None, *, name: str = "marked", coefficient: float | None = None) -> T:
    """Tell a weighing about losses that no known loss function computed; give them back, with the same values.

    Args:
        losses: torch tensor of per-token losses, any shape, before they are reduced; or a scalar term that is already
            reduced, such as a router's balance loss.
        mask: tensor that broadcasts to `losses`, nonzero where a token counts. Without it, the tokens that count are
            those whose loss gets a gradient.
        name: name of the term in the report.
        coefficient: what the term is multiplied by in the total loss. A scalar term is judged by it.

    Returns:
        `losses` itself outside a weighing; inside one, the same values with the probe joined. Use what is returned.

    Example:
        >>> mark([1.0, 2.0])
        [1.0, 2.0]
    """
    if weigher is None:
        return losses
    marked: T = weigher.mark(losses, mask, name, coefficient)
    return marked


def report(name: str, value: Any) -> None:
    """Tell a weighing about a number that is printed or stored without a known logger. Does nothing outside one.

    Args:
        name: name of the number in the report.
        value: a number, or a tensor of one element.
    """
    if weigher is not None:
        weigher.report(name, value, "weighbridge.report")
