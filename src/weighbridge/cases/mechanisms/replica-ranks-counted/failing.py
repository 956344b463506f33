def solve(ranks):
    return sum(tokens for _dp, _cp, _tp, tokens in ranks)
