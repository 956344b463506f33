def solve(batch):
    values, mask = batch["values"], batch["mask"]
    rows = mask * len(values) if len(mask) == 1 else mask
    total = sum(v * keep for value_row, row in zip(values, rows) for v, keep in zip(value_row, row))
    count = sum(map(sum, mask))
    return total / count if count else None
