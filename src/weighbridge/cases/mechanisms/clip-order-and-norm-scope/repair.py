import math


def solve(step):
    flat = [[g for shard in m["shards"] for g in shard] + m["replicated"] for m in step["microbatches"]]
    gradient = [sum(column) / len(flat) for column in zip(*flat)]
    norm = math.sqrt(sum(g * g for g in gradient))
    scale = step["max_norm"] / norm if norm > step["max_norm"] else 1.0
    return {"norm": norm, "gradient": [scale * g for g in gradient]}
