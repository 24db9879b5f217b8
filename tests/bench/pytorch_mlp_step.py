"""One training step of an MLP under PyTorch: DDP over Gloo, or alone where WORLD_SIZE is 1.

The same step as `cohort bench train`: forward, cross entropy, cleared gradients, backward, SGD with
momentum 0.9; synthetic data; one thread per rank. Prints the median in milliseconds of the slowest
rank.
"""
import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn


def make_mlp(widths):
    layers = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--widths", default="784-2048-2048-2048-10")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warmup", type=int, default=10)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    widths = [int(width) for width in options.widths.split("-")]
    model = make_mlp(widths)
    if ranks > 1:
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(options.batch, widths[0])
    targets = torch.randint(0, widths[-1], (options.batch,))

    times = []
    for step in range(-options.warmup, options.steps):
        start = time.perf_counter()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step >= 0:
            times.append((time.perf_counter() - start) * 1e3)

    slowest = torch.tensor(statistics.median(times))
    if ranks > 1:
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if ranks == 1 or dist.get_rank() == 0:
        print(f"{slowest.item():.4f}")


if __name__ == "__main__":
    main()
