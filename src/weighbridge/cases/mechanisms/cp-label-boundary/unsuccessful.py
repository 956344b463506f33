def solve(job):
    tokens, cp = job["tokens"], job["cp"]
    chunks = 2 * cp if job["layout"] == "zigzag" else cp
    size = len(tokens) // chunks
    pairs = []
    for rank in range(cp):
        mine = [rank, chunks - 1 - rank] if job["layout"] == "zigzag" else [rank]
        for chunk in mine:
            held = range(chunk * size, (chunk + 1) * size)
            pairs += [(here, tokens[here], tokens[after]) for here, after in zip(held, held[1:])]
    return [[token, target] for _, token, target in sorted(pairs)]
