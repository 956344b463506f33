def solve(job):
    chosen = [expert for microbatch in job["microbatches"] for expert in microbatch["chosen"]]
    probs = [row for microbatch in job["microbatches"] for row in microbatch["probs"]]
    batch_tokens = len(chosen)
    if not batch_tokens:
        return None
    balance = 0.0
    for expert, column in enumerate(zip(*probs)):
        balance += (chosen.count(expert) / batch_tokens) * (sum(column) / batch_tokens)
    return job["experts"] * balance
