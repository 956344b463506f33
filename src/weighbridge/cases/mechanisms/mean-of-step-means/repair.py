def solve(steps):
    loop_loss, loop_tokens = 0.0, 0
    for _samples, tokens, mean_loss in steps:
        if tokens > 0:
            loop_loss += mean_loss * tokens
            loop_tokens += tokens
    return loop_loss / loop_tokens if loop_tokens else None
