"""Views, pieces and joins."""

import torch


def make(out):
    out.case("reshape.cut", lambda a: a.reshape(2, -1, 3), out.randn(4, 6))
    out.case("reshape.transposed", lambda a: a.t().reshape(4, 6), out.randn(4, 6))
    out.case("flatten", lambda a: a.flatten(1, 2), out.randn(2, 3, 4, 2))
    out.case("transpose", lambda a: a.transpose(0, 2), out.randn(2, 3, 4))
    out.case("permute", lambda a: a.permute(2, 0, 1), out.randn(2, 3, 4))
    out.case("expand", lambda a: a.expand(2, 3, 4), out.randn(3, 1))
    out.case("squeeze", lambda a: a.squeeze(1), out.randn(3, 1, 2))
    out.case("unsqueeze", lambda a: a.unsqueeze(-1), out.randn(3, 2))
    out.case("narrow", lambda a: a.narrow(1, 2, 3), out.randn(3, 6))
    out.case("select", lambda a: a.select(0, -2), out.randn(4, 3))
    out.case("split", lambda a: torch.cat([p * (i + 2) for i, p in enumerate(a.split([1, 3, 2], 1))], 1),
             out.randn(2, 6))
    out.case("cat", lambda a, b, c: torch.cat([a, b, c], 1),
             out.randn(2, 3), out.randn(2, 1), out.randn(2, 4))
    out.case("stack", lambda a, b: torch.stack([a, b], 1), out.randn(2, 3), out.randn(2, 3))
