def solve(job):
    averages = job["reduce"] == "mean"
    ranks = [(loss_sum if count else 0.0, count) for loss_sum, count in job["ranks"]]
    tokens = sum(count for _, count in ranks)
    if not tokens:
        return 0.0
    undo_average = len(ranks) if averages else 1
    gradients = [undo_average * loss_sum / tokens for loss_sum, _ in ranks]
    return sum(gradients) / len(ranks) if averages else sum(gradients)
