def solve(job):
    saved, window = job["saved"], list(job["ranks"])
    if saved and not saved["reported"]:
        window += [saved["state"]] if saved["synced"] else saved["state"]
    counted = [pair for pair in window if pair[1] > 0]
    window_loss = sum(loss_sum for loss_sum, _ in counted)
    return window_loss / sum(count for _, count in counted) if counted else None
