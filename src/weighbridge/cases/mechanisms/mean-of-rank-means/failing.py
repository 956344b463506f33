def solve(rows):
    means = [loss_sum / count if count else 0.0 for loss_sum, count in rows]
    return sum(means) / len(means) if means else None
