def solve(rows):
    total, tokens = 0.0, 0
    for loss_sum, count in rows:
        total += loss_sum
        tokens += max(count, 1)
    return total / tokens if tokens else 0.0
