"""Rows picked from a table."""

import torch
import torch.nn.functional as F


def make(out):
    out.case("embedding.line", F.embedding, torch.tensor([2, 0, 2, 3, 2]), out.randn(5, 3))
    out.case("embedding.block", F.embedding, out.randint(0, 4, 2, 3), out.randn(4, 6))
