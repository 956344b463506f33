def solve(ranks):
    means = []
    for window in ranks:
        tokens = sum(count for _, count in window)
        loss = sum(loss_sum for loss_sum, count in window if count)
        means.append(loss / tokens if tokens else 0.0)
    return sum(means) / len(means) if means else None
