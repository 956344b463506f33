def solve(job):
    reduced = {}
    for name, contributions in job["gradients"].items():
        dp_size = len(contributions)
        scaled = [gradient / job["ep"] for gradient in contributions]
        divisor = dp_size // job["ep"] if name.startswith("expert") else dp_size
        reduced[name] = sum(scaled) / divisor
    return reduced
