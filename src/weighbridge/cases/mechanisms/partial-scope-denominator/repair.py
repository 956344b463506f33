def solve(ranks):
    batch_loss, batch_tokens = 0.0, 0
    for window in ranks:
        for loss_sum, count in window:
            if count > 0:
                batch_loss += loss_sum
                batch_tokens += count
    return batch_loss / batch_tokens if batch_tokens else None
