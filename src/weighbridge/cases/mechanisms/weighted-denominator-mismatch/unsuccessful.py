def solve(job):
    loss, items_seen = 0.0, 0
    for items in job["ranks"]:
        for label, item_loss in items:
            loss += job["weights"][label] * item_loss
            items_seen += 1
    return loss / items_seen if items_seen else None
