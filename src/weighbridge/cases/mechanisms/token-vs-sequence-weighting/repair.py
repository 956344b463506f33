def solve(job):
    sequences = [sequence for rank in job["ranks"] for sequence in rank if sequence]
    if job["objective"] == "sequence-mean":
        numerator = sum(sum(sequence) / len(sequence) for sequence in sequences)
        denominator = len(sequences)
    else:
        numerator = sum(loss for sequence in sequences for loss in sequence)
        token_mean = job["objective"] == "token-mean"
        denominator = sum(map(len, sequences)) if token_mean else len(sequences) * job["max_length"]
    return numerator / denominator if denominator else None
