def solve(samples):
    weighted, positions = 0.0, 0
    for sample in samples:
        kept = [value for value, keep in zip(sample["losses"], sample["mask"]) if keep]
        mean = sum(kept) / len(kept) if kept else 0.0
        weighted += mean * len(sample["mask"])
        positions += len(sample["mask"])
    return weighted / positions if positions else None
