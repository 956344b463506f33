def solve(epoch):
    steps, held = [], 0.0
    for index, gradient in enumerate(epoch["gradients"], start=1):
        held += gradient / epoch["accumulation"]
        if index % epoch["accumulation"] == 0:
            steps.append(held)
            held = 0.0
    return steps
