import math


def solve(batches):
    nll_sum = sum(nll for nll, tokens in batches if tokens > 0)
    token_count = sum(tokens for _, tokens in batches)
    return round(math.exp(nll_sum / token_count), 9) if token_count else None
