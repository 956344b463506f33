def solve(ranks):
    means = []
    for microbatch in zip(*ranks):
        tokens = sum(count for _, count in microbatch)
        loss = sum(loss_sum for loss_sum, count in microbatch if count)
        means.append(loss / tokens if tokens else 0.0)
    return sum(means) / len(means) if means else None
