IGNORE_INDEX = -100


def solve(batch):
    terms = sum(label != IGNORE_INDEX for row in batch["labels"] for label in row)
    return batch["loss_sum"] / terms if terms else None
