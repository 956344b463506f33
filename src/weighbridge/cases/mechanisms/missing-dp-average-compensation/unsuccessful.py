def solve(job):
    ranks = [(loss_sum if count else 0.0, count) for loss_sum, count in job["ranks"]]
    tokens = sum(count for _, count in ranks)
    if not tokens:
        return 0.0
    gradients = [len(ranks) * loss_sum / tokens for loss_sum, _ in ranks]
    return sum(gradients) / len(ranks) if job["reduce"] == "mean" else sum(gradients)
