IGNORE_INDEX = -100


def solve(microbatches):
    samples = sum(len(sequences) for sequences in microbatches)
    step_loss = 0.0
    for sequences in microbatches:
        losses = [loss for tokens in sequences for loss, label in tokens if label != IGNORE_INDEX]
        if losses:
            step_loss += sum(losses) / len(losses) * (len(sequences) / samples)
    return step_loss if samples else None
