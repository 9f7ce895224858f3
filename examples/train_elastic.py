"""Trains the digits of `train_digits.py` on ranks that may come and go.

    ruedarun -np 3 --min-np 1 python examples/train_elastic.py

Kill one of the ranks (`kill -9 PID`, the first lines say which): the others go on from the last commit, and a new
process takes its place. The global batches are the same whatever the number of ranks.
"""

import argparse
import os
import sys
import time

import rueda.torch as hvd
import torch
import torch.nn.functional as F
from train_digits import load_digits, make_model, parameter_hash, test_accuracy


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a digit classifier on ranks that come and go.")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=48, help="examples of all ranks in a step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0, metavar="SECONDS", help="after each step, to have time for kills")
    return parser.parse_args()


def main():
    args = parse_arguments()
    hvd.init()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
    torch.manual_seed(args.seed)
    print(f"rank {hvd.rank()} is process {os.getpid()}", flush=True)

    train_images, train_labels, test_images, test_labels = load_digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, epoch=0, step=0)
    state.register_reset_callbacks([lambda: print(f"rank {hvd.rank()} of {hvd.size()} goes on", flush=True)])
    steps = -(-len(train_labels) // args.batch_size)

    def train_step(state, order):
        whole = order[state.step * args.batch_size : (state.step + 1) * args.batch_size]
        mine = whole[hvd.rank() :: hvd.size()]
        state.optimizer.zero_grad()
        # The average over ranks is the mean over the whole batch, also where it does not divide evenly.
        loss = F.cross_entropy(state.model(train_images[mine]), train_labels[mine], reduction="sum")
        (loss * (hvd.size() / len(whole))).backward()
        state.optimizer.step()

    @hvd.elastic.run
    def train(state):
        while state.epoch < args.epochs:
            order = torch.randperm(len(train_labels), generator=torch.Generator().manual_seed(state.epoch))
            while state.step < steps:
                train_step(state, order)
                state.step += 1
                time.sleep(args.pause)
                state.commit()
            state.epoch, state.step = state.epoch + 1, 0
            accuracy = test_accuracy(state.model, test_images, test_labels)
            if hvd.rank() == 0:
                print(f"epoch {state.epoch:2}/{args.epochs}  accuracy {accuracy:.4f}", flush=True)
        return hvd.allgather_object(parameter_hash(state.model)), accuracy

    hashes, accuracy = train(state)
    if hvd.rank() == 0:
        print(f"test accuracy {accuracy:.4f} on {len(hashes)} ranks, {state.commits} commits")
        for rank, value in enumerate(hashes):
            print(f"parameter hash rank {rank} {value}")
    hvd.shutdown()
    return 0 if len(set(hashes)) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
