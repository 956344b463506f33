def solve(rows):
    sent = [(loss_sum, count) if count > 0 else (0.0, 0) for loss_sum, count in rows]
    total_loss = sum(loss_sum for loss_sum, _ in sent)
    total_count = sum(count for _, count in sent)
    return total_loss / total_count if total_count else None
