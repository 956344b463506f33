def solve(ranks):
    means = [[loss_sum / count if count else 0.0 for loss_sum, count in batches] for batches in ranks]
    longest = max(map(len, means), default=0)
    steps = []
    for step in range(longest):
        active = [own[step] for own in means if step < len(own)]
        steps.append(sum(active) / len(active))
    everything = [mean for own in means for mean in own]
    return {"steps": steps, "metric": sum(everything) / len(everything) if everything else None}
