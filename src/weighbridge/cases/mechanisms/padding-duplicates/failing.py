def solve(job):
    scores, world_size = job["scores"], job["world_size"]
    if not scores:
        return None
    per_rank = -(-len(scores) // world_size)
    indices = [index % len(scores) for index in range(per_rank * world_size)]
    total = count = 0
    for rank in range(world_size):
        own = [scores[index] for index in indices[rank::world_size]]
        total += sum(own)
        count += len(own)
    return total / count
