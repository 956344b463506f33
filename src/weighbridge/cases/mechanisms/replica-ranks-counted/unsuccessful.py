def solve(ranks):
    data_ranks = len({dp for dp, _cp, _tp, _tokens in ranks})
    if not data_ranks:
        return 0
    copies = len(ranks) // data_ranks
    return sum(tokens for _dp, _cp, _tp, tokens in ranks) // copies
