def solve(job):
    everything = [x for items in job["ranks"] for x in items]
    gradients = []
    for items in job["ranks"]:
        batch = everything if job["gather"] else items
        others = sum(job["w"] * x for x in batch)
        gradients.append(sum(x * (others - job["w"] * x) for x in items))
    return sum(gradients) / len(gradients) if gradients else 0.0
