IGNORE_INDEX = -100


def solve(microbatches):
    step_loss, step_tokens = 0.0, 0
    for sequences in microbatches:
        for loss, label in (token for tokens in sequences for token in tokens):
            if label != IGNORE_INDEX:
                step_loss += loss
                step_tokens += 1
    return step_loss / step_tokens if step_tokens else None
