"""A training script in the style of Horovod's documentation; only its import says rueda."""

import rueda.torch as hvd
import torch
import torch.nn.functional as F
import torch.optim as optim

hvd.init()

if torch.cuda.is_available():
    pass  # this version of rueda works on CPU tensors

torch.manual_seed(42 + hvd.rank())
features = torch.randn(96, 10, generator=torch.Generator().manual_seed(3))
train_dataset = torch.utils.data.TensorDataset(features, (features.sum(1) > 0).long())
train_sampler = torch.utils.data.distributed.DistributedSampler(
    train_dataset, num_replicas=hvd.size(), rank=hvd.rank()
)
# A worker process: it is forked from a process in which rueda is running.
train_loader = torch.utils.data.DataLoader(
    train_dataset, batch_size=8, sampler=train_sampler, num_workers=1
)

model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.5)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

compression = hvd.Compression.fp16
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=compression,
    op=hvd.Average,
    gradient_predivide_factor=1.0,
)


def metric_average(val, name):
    tensor = torch.tensor(val)
    avg_tensor = hvd.allreduce(tensor, name=name)
    return avg_tensor.item()


for epoch in range(2):
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    average_loss = metric_average(loss.item(), "avg_loss")
    if hvd.rank() == 0:
        print(f"Train Epoch: {epoch} Loss: {average_loss:.4f}")

weights = torch.cat([p.detach().flatten() for p in model.parameters()])
everyone = hvd.allgather(weights.unsqueeze(0))
assert all(torch.equal(row, weights) for row in everyone)
print(f"rank {hvd.rank()} of {hvd.size()} finished with equal parameters")
