"""Reductions."""

import torch


def make(out):
    dims = {"all": [0, 1, 2], "first": [0], "middle": [1], "last": [2], "outer": [0, 2], "inner": [1, 2]}
    for name, list_ in dims.items():
        for keep in (False, True):
            suffix = f".{name}" + (".keep" if keep else "")
            out.case("sum" + suffix, lambda x: x.sum(list_, keepdim=keep), out.randn(3, 4, 5))
            out.case("mean" + suffix, lambda x: x.mean(list_, keepdim=keep), out.randn(3, 4, 5))
    for dim in range(3):
        out.case(f"max.{dim}", lambda x: x.max(dim)[0], out.randn(3, 4, 5))
        out.case(f"argmax.{dim}", lambda x: x.argmax(dim), out.randn(3, 4, 5), gradient=False)
    out.case("sum.integer", torch.sum, out.randint(-5, 5, 3, 4))
    out.case("sum.bool", torch.sum, out.randint(0, 2, 3, 4) > 0)
    out.case("sum.bf16", lambda x: x.sum(0), out.randn(7, 3, dtype=torch.bfloat16))
    out.case("norm", lambda x: x.norm(), out.randn(50), gradient=False)
