def f1(hits, false_alarms, misses):
    found = 2 * hits + false_alarms + misses
    return 2 * hits / found if found else 0.0


def auroc(positives, negatives):
    pairs = [(p, n) for p in positives for n in negatives]
    return sum((p > n) + (p == n) / 2 for p, n in pairs) / len(pairs) if pairs else 0.0


def solve(job):
    metric = f1 if job["metric"] == "f1" else auroc
    values = [metric(*share) for share in job["ranks"]]
    return sum(values) / len(values) if values else None
