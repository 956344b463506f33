def solve(ranks):
    count = sum(len(values) for values in ranks)
    if not count:
        return None
    mean = variance = 0.0
    for values in ranks:
        if values:
            own = sum(values) / len(values)
            mean += own * len(values) / count
            variance += sum((x - own) ** 2 for x in values) / count
    return {"mean": mean, "var": variance}
