def solve(job):
    means = []
    for items in job["ranks"]:
        weights = [job["weights"][label] for label, _ in items]
        loss = sum(weight * loss for weight, (_, loss) in zip(weights, items))
        means.append(loss / sum(weights) if sum(weights) else 0.0)
    return sum(means) / len(means) if means else None
