def solve(job):
    saved, loss, tokens = job["saved"], 0.0, 0
    for rank, (loss_sum, count) in enumerate(job["ranks"]):
        if saved:
            restored = saved["state"] if saved["synced"] else saved["state"][rank]
            loss += restored[0]
            tokens += restored[1]
        if count:
            loss += loss_sum
            tokens += count
    return loss / tokens if tokens else None
