def f1(hits, false_alarms, misses):
    found = 2 * hits + false_alarms + misses
    return (2 * hits / found if found else 0.0), hits + false_alarms + misses


def auroc(positives, negatives):
    pairs = [(p, n) for p in positives for n in negatives]
    value = sum((p > n) + (p == n) / 2 for p, n in pairs) / len(pairs) if pairs else 0.0
    return value, len(positives) + len(negatives)


def solve(job):
    metric = f1 if job["metric"] == "f1" else auroc
    values = [metric(*share) for share in job["ranks"]]
    items = sum(weight for _, weight in values)
    return sum(value * weight for value, weight in values) / items if items else None
