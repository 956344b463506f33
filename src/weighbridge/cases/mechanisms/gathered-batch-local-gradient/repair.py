def solve(job):
    everything = [x for items in job["ranks"] for x in items]
    parts_of_one_loss = len(job["ranks"]) if job["gather"] else 1
    gradients = []
    for items in job["ranks"]:
        batch = everything if job["gather"] else items
        others = sum(job["w"] * x for x in batch)
        gradients.append(parts_of_one_loss * sum(x * (others - job["w"] * x) for x in items))
    return sum(gradients) / len(gradients) if gradients else 0.0
