def solve(job):
    loss, chunks, chunk = 0.0, 0, job["chunk"]
    for start in range(0, len(job["losses"]), chunk):
        part = slice(start, start + chunk)
        kept = [value for value, keep in zip(job["losses"][part], job["mask"][part]) if keep]
        loss += sum(kept) / len(kept) if kept else 0.0
        chunks += 1
    return loss / chunks if chunks else None
