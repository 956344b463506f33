def solve(job):
    steps, per_step = [], job["per_step"]
    for start in range(0, len(job["microbatches"]), per_step):
        window = job["microbatches"][start : start + per_step]
        means = [loss_sum / count for loss_sum, count in window if count]
        steps.append(sum(means) if means else None)
    return steps
