def solve(job):
    means = []
    for sequences in job["ranks"]:
        losses = [loss for sequence in sequences for loss in sequence]
        means.append(sum(losses) / len(losses) if losses else 0.0)
    return sum(means) / len(means) if means else None
