"""weighbridge: how much does each token weigh in your distributed training step?"""

from weighbridge.marking import mark, report

__all__ = ["mark", "report"]

__version__ = "0.1.0"
