def solve(step):
    ranks, world_size = step["ce"], len(step["ce"])
    tokens = sum(count for _, count in ranks)
    ce = [world_size * loss_sum / tokens for loss_sum, count in ranks if count]
    aux = [world_size * step["alpha"] * loss for loss in step["aux"]]
    return {
        "ce": sum(ce) / world_size if tokens else None,
        "aux": sum(aux) / world_size if aux else None,
    }
