def solve(samples):
    loss, count = 0.0, 0
    for sample in samples:
        loss += sum(value for value, keep in zip(sample["losses"], sample["mask"]) if keep)
        count += max(sum(sample["mask"]), 1)
    return loss / count if count else None
