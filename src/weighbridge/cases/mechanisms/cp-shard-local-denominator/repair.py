def solve(sequence):
    length = len(sequence["losses"]) // sequence["cp"]
    sequence_loss, sequence_tokens = 0.0, 0
    for rank in range(sequence["cp"]):
        shard = slice(rank * length, (rank + 1) * length)
        for loss, label in zip(sequence["losses"][shard], sequence["labels"][shard]):
            if label != -100:
                sequence_loss += loss
                sequence_tokens += 1
    return sequence_loss / sequence_tokens if sequence_tokens else None
