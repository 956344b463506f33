def solve(ranks):
    moments = [(len(values), sum(values), sum(x * x for x in values)) for values in ranks]
    count, total, squares = (sum(column) for column in zip(*moments)) if moments else (0, 0, 0)
    if not count:
        return None
    mean = total / count
    return {"mean": mean, "var": squares / count - mean * mean}
