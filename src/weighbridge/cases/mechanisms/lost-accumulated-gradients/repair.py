def solve(microbatches):
    buffer = {}
    for gradients in microbatches:
        for name, gradient in gradients.items():
            buffer[name] = buffer.get(name, 0.0) + gradient / len(microbatches)
    return buffer
