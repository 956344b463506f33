def solve(stages):
    known = [loss for losses in stages for loss in losses if loss is not None]
    return sum(known) / len(known) if known else None
