def solve(rows):
    weighted = 0.0
    for loss_sum, count in rows:
        mean = loss_sum / count if count else 0.0
        weighted += mean * count
    return weighted / len(rows) if rows else None
