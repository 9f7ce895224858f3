"""A training script for one process or many:  ruedarun -np 2 python NAME

What makes it distributed is marked with [rueda]; everything else is PyTorch as ever.
"""

import rueda.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS = 5
BATCH = 32  # examples of one rank and step
FILE = "checkpoint.pt"


def load():
    """Replace this by your data. Every rank sees the same numbers here, the sampler shares them out."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 10, generator=made)
    return TensorDataset(x, (x.sum(1) > 0).long())


def main():
    hvd.init()  # [rueda] joins the job; alone it is a job of one rank
    torch.manual_seed(hvd.rank())

    data = load()
    sampler = DistributedSampler(data, hvd.size(), hvd.rank())  # [rueda] this rank's part of each epoch
    loader = DataLoader(data, BATCH, sampler=sampler)

    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    # [rueda] the batch of a step grows with the ranks, and so does the learning rate
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size())
    # [rueda] gradients are averaged over ranks while backward is still running
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    # [rueda] all ranks begin with rank 0's numbers
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # another order in each epoch, the same one on all ranks
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        mean = hvd.allreduce(loss.detach(), name="loss")  # [rueda] the average over ranks
        if hvd.rank() == 0:  # [rueda] one rank speaks and writes
            print(f"epoch {epoch + 1}: loss {mean.item():.4f}")
            torch.save(model.state_dict(), FILE)


if __name__ == "__main__":
    main()
