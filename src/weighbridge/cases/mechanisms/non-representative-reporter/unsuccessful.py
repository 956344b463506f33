def solve(stages):
    last_stage = stages[-1] if stages else []
    reported = None
    for loss in last_stage:
        reported = loss
    return reported
