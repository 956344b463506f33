def solve(step):
    answer = {}
    for head, weight in (("main", 1), ("mtp", step["weight"])):
        counted = [rank[head] for rank in step["ranks"] if rank[head][1] > 0]
        head_loss = sum(loss_sum for loss_sum, _ in counted)
        head_count = sum(count for _, count in counted)
        answer[head] = weight * head_loss / head_count if counted else None
    return answer
