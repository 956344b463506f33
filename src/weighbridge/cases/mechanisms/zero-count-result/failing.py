import math


def solve(rows):
    weighted, tokens = 0.0, 0
    for loss_sum, count in rows:
        mean = loss_sum / count if count else math.nan  # what 0/0 gives on a tensor
        weighted += mean * count
        tokens += count
    return weighted / tokens if tokens else math.nan
