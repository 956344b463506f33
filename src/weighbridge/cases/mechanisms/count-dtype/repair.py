def solve(rows):
    total, tokens = 0.0, 0
    for loss_sum, count in rows:
        if count > 0:
            total += loss_sum
            tokens += int(count)
    return total / tokens if tokens else None
