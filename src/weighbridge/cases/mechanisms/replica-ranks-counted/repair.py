def solve(ranks):
    held = {}
    for dp, cp, _tp, tokens in ranks:
        held[dp, cp] = tokens
    return sum(held.values())
