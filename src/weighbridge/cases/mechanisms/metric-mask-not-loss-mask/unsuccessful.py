def solve(batch):
    total, count = 0.0, 0
    for value_row, row in zip(batch["values"], batch["attention"]):
        total += sum(v for v, keep in zip(value_row, row) if keep)
        count += sum(row)
    return total / count if count else None
