def solve(samples):
    loss, count = 0.0, 0
    for sample in samples:
        loss += sum(value for value, keep in zip(sample["losses"], sample["mask"]) if keep)
        count += sum(sample["mask"])
    return loss / count if count else None
