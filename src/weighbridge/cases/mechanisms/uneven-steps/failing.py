def solve(ranks):
    means = [[loss_sum / count if count else 0.0 for loss_sum, count in batches] for batches in ranks]
    longest = max(map(len, means), default=0)
    steps = []
    for step in range(longest):
        active = [own[step] for own in means if step < len(own)]
        steps.append(sum(active) / len(ranks))
    rank_means = [sum(own) / len(own) for own in means if own]
    return {"steps": steps, "metric": sum(rank_means) / len(rank_means) if rank_means else None}
