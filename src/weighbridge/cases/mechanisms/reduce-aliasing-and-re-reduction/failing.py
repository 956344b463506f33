def solve(ranks):
    buffers = [0] * len(ranks)
    for contributions in zip(*ranks):
        buffers = [held + new for held, new in zip(buffers, contributions)]
        buffers = [sum(buffers)] * len(buffers)  # all_reduce, in place
    return {"total": buffers[0] if buffers else 0, "local": buffers}
