"""An all-reduce of f32 over Gloo under PyTorch. Prints the median in milliseconds of the slowest
rank, each run timed from a barrier on, as `cohort bench collective` does."""
import argparse
import statistics
import time

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=26214400)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    values = torch.zeros(options.bytes // 4)
    times = []
    for run in range(-options.warmup, options.runs):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(values)
        if run >= 0:
            times.append((time.perf_counter() - start) * 1e3)
    slowest = torch.tensor(statistics.median(times))
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(f"{slowest.item():.4f}")


if __name__ == "__main__":
    main()
