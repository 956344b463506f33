def solve(job):
    if not job["ranks"]:
        return None
    first, second, *third = (sum(parts, start=type(parts[0])()) for parts in zip(*job["ranks"]))
    if job["metric"] == "f1":
        numerator, denominator = 2 * first, 2 * first + second + third[0]
    else:
        numerator = sum((p > n) + (p == n) / 2 for p in first for n in second)
        denominator = len(first) * len(second)
    return numerator / denominator if denominator else None
