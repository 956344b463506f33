def solve(ranks):
    world_size = len(ranks)
    tokens = sum(count for _, count in ranks)
    if not tokens:
        return {"gradient": 0.0, "logged": None}
    shares = [loss_sum / tokens for loss_sum, count in ranks if count]
    to_backward = [world_size * share for share in shares]
    return {"gradient": sum(to_backward) / world_size, "logged": sum(shares)}
