def solve(steps):
    losses = []
    for _samples, _tokens, mean_loss in steps:
        losses.append(mean_loss)
    return sum(losses) / len(losses) if losses else None
