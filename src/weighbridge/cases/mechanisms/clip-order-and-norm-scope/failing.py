import math


def solve(step):
    clipped = []
    for microbatch in step["microbatches"]:
        elements = [g for shard in microbatch["shards"] for g in shard] + microbatch["replicated"]
        norm = math.sqrt(sum(g * g for g in elements))
        scale = step["max_norm"] / norm if norm > step["max_norm"] else 1.0
        clipped.append([scale * g for g in elements])
    gradient = [sum(column) / len(clipped) for column in zip(*clipped)]
    return {"norm": math.sqrt(sum(g * g for g in gradient)), "gradient": gradient}
