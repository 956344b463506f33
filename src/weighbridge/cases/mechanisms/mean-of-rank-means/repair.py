def solve(rows):
    counted = [(loss_sum, count) for loss_sum, count in rows if count > 0]
    global_loss = sum(loss_sum for loss_sum, _ in counted)
    global_count = sum(count for _, count in counted)
    return global_loss / global_count if global_count else None
