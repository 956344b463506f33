import math


def solve(batches):
    means = [nll / max(tokens, 1) for nll, tokens in batches]
    return round(math.exp(sum(means) / len(means)), 9) if means else None
