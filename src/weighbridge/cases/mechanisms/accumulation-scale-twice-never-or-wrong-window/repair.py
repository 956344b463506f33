def solve(job):
    steps, per_step = [], job["per_step"]
    for start in range(0, len(job["microbatches"]), per_step):
        window = job["microbatches"][start : start + per_step]
        window_loss = sum(loss_sum for loss_sum, count in window if count > 0)
        window_tokens = sum(count for _, count in window)
        steps.append(window_loss / window_tokens if window_tokens else None)
    return steps
