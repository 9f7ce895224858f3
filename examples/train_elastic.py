"""Trains the digits of train_digits.py in a job whose ranks may come and go.

    ruedarun -np 4 --min-np 2 python examples/train_elastic.py
    kill -9 one of its ranks, whenever you like: the others go on, and a new one joins them

What is in the state is saved at each commit, in memory. After a loss the ranks go back to the newest commit and call
`train` again; a rank that comes later gets the state of the others first.
"""

import argparse
import sys

import rueda.torch as hvd
import torch
import torch.nn.functional as F
from train_digits import load_digits, make_model, parameter_hash, test_accuracy


@hvd.elastic.run
def train(state, images, labels, epochs, batch_size):
    if hvd.rank() == 0:
        print(f"epoch {state.epoch + 1}, batch {state.batch}: {hvd.size()} ranks", flush=True)
    while state.epoch < epochs:
        # Of what nobody has processed in this epoch, this rank's share; dealt out anew when the ranks change.
        batches = torch.utils.data.DataLoader(range(len(labels)), batch_size, sampler=state.sampler)
        for number, indices in enumerate(batches):
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(images[indices]), labels[indices])
            loss.backward()
            state.optimizer.step()
            state.sampler.record_batch(number, len(indices))
            state.batch += 1
            state.commit()
        if hvd.rank() == 0:
            print(f"epoch {state.epoch + 1} done, loss {loss.item():.4f}", flush=True)
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()


def main():
    parser = argparse.ArgumentParser(description="Trains a digit classifier on ranks that come and go.")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=24, help="examples per rank and step")
    parser.add_argument("--lr", type=float, default=0.012, help="learning rate of one rank")
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    train_images, train_labels, test_images, test_labels = load_digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    sampler = hvd.elastic.ElasticSampler(range(len(train_labels)))
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    def adapt():  # the global batch grows with the ranks, and the learning rate with it
        for group in optimizer.param_groups:
            group["lr"] = args.lr * hvd.size()

    state.register_reset_callbacks([adapt])
    adapt()
    train(state, train_images, train_labels, args.epochs, args.batch_size)

    accuracy = test_accuracy(model, test_images, test_labels)
    hashes = hvd.allgather_object(parameter_hash(model))
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f}")
        for rank, value in enumerate(hashes):
            print(f"parameter hash rank {rank} {value}")
    hvd.shutdown()
    return 0 if len(set(hashes)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
