def solve(job):
    counts, mass, seen, tokens = [0] * job["experts"], [0.0] * job["experts"], 0, 0
    for microbatch in job["microbatches"]:
        tokens = len(microbatch["chosen"])
        seen += tokens
        for expert in range(job["experts"]):
            counts[expert] += microbatch["chosen"].count(expert)
            mass[expert] += sum(row[expert] for row in microbatch["probs"])
    if not tokens:
        return None
    return job["experts"] * sum(count / tokens * p / seen for count, p in zip(counts, mass))
