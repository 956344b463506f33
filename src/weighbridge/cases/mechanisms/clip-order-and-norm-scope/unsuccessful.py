import math


def solve(step):
    microbatches = step["microbatches"]
    if not microbatches:
        return {"norm": 0.0, "gradient": []}
    tp_size = len(microbatches[0]["shards"])
    flat = [[g for shard in m["shards"] for g in shard] + m["replicated"] for m in microbatches]
    gradient = [sum(column) / len(flat) for column in zip(*flat)]
    replicated = len(microbatches[0]["replicated"])
    own = gradient[: len(gradient) - replicated]
    copies = gradient[len(gradient) - replicated :]
    norm = math.sqrt(sum(g * g for g in own) + tp_size * sum(g * g for g in copies))
    scale = step["max_norm"] / norm if norm > step["max_norm"] else 1.0
    return {"norm": norm, "gradient": [scale * g for g in gradient]}
