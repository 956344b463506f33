def solve(sequence):
    length = len(sequence["losses"]) // sequence["cp"]
    means = []
    for rank in range(sequence["cp"]):
        shard = slice(rank * length, (rank + 1) * length)
        pairs = zip(sequence["losses"][shard], sequence["labels"][shard])
        kept = [loss for loss, label in pairs if label != -100]
        means.append(sum(kept) / len(kept) if kept else 0.0)
    return sum(means) / len(means)
