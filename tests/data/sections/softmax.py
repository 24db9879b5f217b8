"""Softmax and its logarithm."""

import torch


def make(out):
    for name, shape, dim in (("row", (3, 5), 1), ("long", (1, 70), -1), ("column", (4, 3), 0),
                             ("middle", (2, 3, 35), 1), ("single", (3, 1), 1)):
        out.case(f"softmax.{name}", lambda a: torch.softmax(a, dim), out.randn(*shape) * 3)
        out.case(f"log_softmax.{name}", lambda a: torch.log_softmax(a, dim), out.randn(*shape) * 3)
    large = torch.tensor([[1000.0, 1001.0, 999.0], [-1e4, 0.0, 1e4]])
    out.case("softmax.large", lambda a: torch.softmax(a, 1), large)
    out.case("log_softmax.large", lambda a: torch.log_softmax(a, 1), large)
    masked = torch.tensor([[0.5, float("-inf"), 1.5]])
    out.case("softmax.masked", lambda a: torch.softmax(a, 1), masked)
