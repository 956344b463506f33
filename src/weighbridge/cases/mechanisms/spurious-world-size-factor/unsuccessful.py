def solve(ranks):
    world_size = len(ranks)
    tokens = sum(count for _, count in ranks)
    if not tokens:
        return {"gradient": 0.0, "logged": None}
    losses = [loss_sum / tokens for loss_sum, count in ranks if count]
    return {"gradient": sum(losses) / world_size, "logged": sum(losses)}
