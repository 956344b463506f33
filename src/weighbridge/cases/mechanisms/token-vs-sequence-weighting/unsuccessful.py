def solve(job):
    means = []
    for sequences in job["ranks"]:
        sequences = [sequence for sequence in sequences if sequence]
        losses = [loss for sequence in sequences for loss in sequence]
        if not losses:
            means.append(0.0)
        elif job["objective"] == "token-mean":
            means.append(sum(losses) / len(losses))
        elif job["objective"] == "sequence-mean":
            means.append(sum(sum(sequence) / len(sequence) for sequence in sequences) / len(sequences))
        else:
            means.append(sum(losses) / (len(sequences) * job["max_length"]))
    return sum(means) / len(means) if means else None
