def solve(job):
    losses = []
    for microbatch in job["microbatches"]:
        tokens, loss = len(microbatch["chosen"]), 0.0
        for expert in range(job["experts"] if tokens else 0):
            share = microbatch["chosen"].count(expert) / tokens
            probability = sum(row[expert] for row in microbatch["probs"]) / tokens
            loss += job["experts"] * share * probability
        losses.append(loss)
    return sum(losses) / len(losses) if losses else None
