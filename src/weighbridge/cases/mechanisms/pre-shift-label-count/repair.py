IGNORE_INDEX = -100


def solve(batch):
    terms = 0
    for labels, documents in zip(batch["labels"], batch["documents"]):
        for label, own, before in zip(labels[1:], documents[1:], documents):
            terms += label != IGNORE_INDEX and own == before
    return batch["loss_sum"] / terms if terms else None
