"""Learning rates of each schedule over 25 steps, for an initial rate of 0.5."""

import warnings

import torch
from torch.optim import lr_scheduler as schedulers


def warm_up_then_cosine(optimizer):
    first = schedulers.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    second = schedulers.CosineAnnealingLR(optimizer, T_max=10, eta_min=0.02)
    return schedulers.SequentialLR(optimizer, [first, second], milestones=[5])


CASES = {
    "step": lambda o: schedulers.StepLR(o, step_size=7, gamma=0.3),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, T_max=10, eta_min=0.02),
    "warmup": lambda o: schedulers.LinearLR(o, start_factor=0.25, total_iters=8),
    "warmup_cosine": warm_up_then_cosine,
}


def make(out):
    warnings.simplefilter("ignore")  # SequentialLR calls an old form of step()
    for name, case in CASES.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        scheduler = case(optimizer)
        rates = []
        for _ in range(25):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        out.add(name, torch.tensor(rates, dtype=torch.float64))
