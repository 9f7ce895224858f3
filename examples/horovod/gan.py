"""A generative adversarial network in Horovod's API: two models, two distributed optimizers.

    ruedarun --horovod -np 2 python examples/horovod/gan.py

Knows nothing of rueda: the same file runs on Horovod. The generator learns to make points on a ring
of radius 2; the discriminator learns to tell them from true ones. Each step has two backward passes
for the discriminator and one for the generator, through a discriminator that is frozen meanwhile.
"""

import argparse
import math

import horovod.torch as hvd
import torch
import torch.nn.functional as F

NOISE = 4


def true_points(count, generator):
    """Points near the ring: float32[count, 2]."""
    angle = torch.rand(count, generator=generator) * 2 * math.pi
    radius = 2 + 0.05 * torch.randn(count, generator=generator)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def network(inputs, outputs, width=48):
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, width),
        torch.nn.LeakyReLU(0.2),
        torch.nn.Linear(width, width),
        torch.nn.LeakyReLU(0.2),
        torch.nn.Linear(width, outputs),
    )


def distributed(model, name, lr, passes=1):
    """Both networks have parameters of the same names, so each name says whose it is."""
    return hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=lr, betas=(0.5, 0.999)),
        named_parameters=[(f"{name}.{key}", p) for key, p in model.named_parameters()],
        backward_passes_per_step=passes,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(10 + hvd.rank())
    data = torch.Generator().manual_seed(100 + hvd.rank())  # every rank has points of its own

    generator, discriminator = network(NOISE, 2), network(2, 1)
    g_optimizer = distributed(generator, "generator", args.lr)
    d_optimizer = distributed(discriminator, "discriminator", args.lr, passes=2)
    for model, optimizer in ((generator, g_optimizer), (discriminator, d_optimizer)):
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    real, fake = torch.ones(args.batch_size, 1), torch.zeros(args.batch_size, 1)
    for step in range(args.steps):
        made = generator(torch.randn(args.batch_size, NOISE))

        d_optimizer.zero_grad()
        d_loss = F.binary_cross_entropy_with_logits(
            discriminator(true_points(args.batch_size, data)), real
        )
        d_loss.backward()
        F.binary_cross_entropy_with_logits(discriminator(made.detach()), fake).backward()
        d_optimizer.step()

        g_optimizer.zero_grad()
        discriminator.requires_grad_(False)
        g_loss = F.binary_cross_entropy_with_logits(discriminator(made), real)
        g_loss.backward()
        discriminator.requires_grad_(True)
        g_optimizer.step()

        if (step + 1) % 100 == 0:
            losses = hvd.allreduce(torch.stack([d_loss.detach(), g_loss.detach()]), name="losses")
            if hvd.rank() == 0:
                print(f"step {step + 1}: losses {losses[0]:.3f} {losses[1]:.3f}", flush=True)

    with torch.no_grad():
        made = hvd.allgather(generator(torch.randn(500, NOISE)), name="made")
    distance = (made.norm(dim=1) - 2).abs().mean().item()
    if hvd.rank() == 0:
        print(f"mean distance from the ring {distance:.2f}")


if __name__ == "__main__":
    main()
