def solve(ranks):
    loss, tokens = 0.0, 0
    for window in ranks:
        for loss_sum, count in window:
            if count > 0:
                loss += loss_sum
                tokens += count
    return loss / tokens if tokens else None
