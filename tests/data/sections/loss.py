"""Losses."""

import torch
import torch.nn.functional as F


def make(out):
    targets = torch.tensor([1, 0, -100, 4, 2])
    for smoothing in (0.0, 0.1, 1.0):
        for reduction in ("none", "mean", "sum"):
            out.case(f"cross_entropy.{reduction}.{smoothing}",
                     lambda x, t: F.cross_entropy(x, t, reduction=reduction,
                                                  label_smoothing=smoothing),
                     out.randn(5, 6) * 2, targets)
    out.case("cross_entropy.wide", F.cross_entropy, out.randn(3, 67) * 4, torch.tensor([66, 0, 31]))
    out.case("cross_entropy.ignored",
             lambda x, t: F.cross_entropy(x, t, ignore_index=1), out.randn(4, 3),
             torch.tensor([1, 2, 1, 0]))
    for reduction in ("none", "mean", "sum"):
        out.case(f"mse_loss.{reduction}", lambda x, t: F.mse_loss(x, t, reduction=reduction),
                 out.randn(3, 4), out.randn(3, 4))
