def solve(epoch):
    steps, held = [], []
    for index, gradient in enumerate(epoch["gradients"], start=1):
        held.append(gradient)
        if index % epoch["accumulation"] == 0 or index == len(epoch["gradients"]):
            steps.append(sum(held) / len(held))
            held = []
    return steps
