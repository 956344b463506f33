def solve(microbatches):
    buffer = {}
    for gradients in microbatches:
        for name, gradient in gradients.items():
            buffer[name] = gradient / len(microbatches)
    return buffer
