def solve(steps):
    losses = []
    for samples, _tokens, mean_loss in steps:
        losses += [mean_loss] * samples
    return sum(losses) / len(losses) if losses else None
