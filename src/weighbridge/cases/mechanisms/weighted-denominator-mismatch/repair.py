def solve(job):
    weighted_loss, weight_sum = 0.0, 0.0
    for items in job["ranks"]:
        for label, item_loss in items:
            weight = job["weights"][label]
            if weight > 0:
                weighted_loss += weight * item_loss
                weight_sum += weight
    return weighted_loss / weight_sum if weight_sum else None
