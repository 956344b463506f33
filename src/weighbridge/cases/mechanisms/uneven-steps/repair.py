from itertools import zip_longest


def solve(ranks):
    steps, loop_loss, loop_count = [], 0.0, 0
    for rows in zip_longest(*ranks, fillvalue=(0.0, 0)):
        step_loss = sum(loss_sum for loss_sum, count in rows if count > 0)
        step_count = sum(count for _, count in rows)
        steps.append(step_loss / step_count if step_count else None)
        loop_loss += step_loss
        loop_count += step_count
    return {"steps": steps, "metric": loop_loss / loop_count if loop_count else None}
