def solve(job):
    loss, chunk = 0.0, job["chunk"]
    for start in range(0, len(job["losses"]), chunk):
        part = slice(start, start + chunk)
        kept = [value for value, keep in zip(job["losses"][part], job["mask"][part]) if keep]
        loss += sum(kept) / len(kept) if kept else 0.0
    return loss if any(job["mask"]) else None
