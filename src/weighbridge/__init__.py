"""weighbridge: how much does each token weigh in your distributed training step?"""

__version__ = "0.1.0"
