def solve(job):
    steps, per_step = [], job["per_step"]
    for start in range(0, len(job["microbatches"]), per_step):
        window = job["microbatches"][start : start + per_step]
        tokens = sum(count for _, count in window)
        loss = sum(loss_sum / tokens for loss_sum, count in window if count)
        steps.append(loss / per_step if tokens else None)
    return steps
