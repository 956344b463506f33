def solve(ranks):
    means, variances = [], []
    for values in ranks:
        mean = sum(values) / max(len(values), 1)
        means.append(mean)
        variances.append(sum((x - mean) ** 2 for x in values) / max(len(values), 1))
    if not ranks:
        return None
    return {"mean": sum(means) / len(ranks), "var": sum(variances) / len(ranks)}
