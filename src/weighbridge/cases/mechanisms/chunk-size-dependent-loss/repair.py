def solve(job):
    chunk_sums, chunk_counts, chunk = [], [], job["chunk"]
    for start in range(0, len(job["losses"]), chunk):
        part = slice(start, start + chunk)
        kept = [value for value, keep in zip(job["losses"][part], job["mask"][part]) if keep]
        chunk_sums.append(sum(kept))
        chunk_counts.append(len(kept))
    return sum(chunk_sums) / sum(chunk_counts) if any(chunk_counts) else None
