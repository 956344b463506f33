def solve(ranks):
    if len({len(metrics) for metrics in ranks}) > 1:
        return "hang"  # one rank waits in a collective that another never enters
    reduced = [dict(metrics) for metrics in ranks]
    for position in zip(*ranks):
        values = [metrics[name] for metrics, name in zip(ranks, position)]
        for own, name in zip(reduced, position):
            own[name] = sum(values) / len(values)
    return reduced
