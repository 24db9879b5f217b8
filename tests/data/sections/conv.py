"""Convolution and pooling."""

import torch.nn.functional as F


def make(out):
    cases = {
        "plain": ((2, 3, 5, 4), (4, 3, 3, 3), {}),
        "padded": ((2, 2, 4, 4), (3, 2, 3, 3), {"padding": 1}),
        "strided": ((2, 2, 8, 7), (3, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
        "dilated": ((1, 2, 7, 6), (3, 2, 3, 3), {"dilation": 2, "padding": (2, 1)}),
        "grouped": ((2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
        "depthwise": ((2, 4, 5, 5), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
        "point": ((2, 5, 3, 3), (4, 5, 1, 1), {}),
        "cut": ((1, 1, 6, 6), (2, 1, 3, 3), {"stride": 2}),
        "blocked": ((1, 16, 4, 3), (16, 16, 2, 2), {"padding": 1}),
    }
    for name, (x, weight, options) in cases.items():
        out.case(f"conv2d.{name}", lambda x, w, b: F.conv2d(x, w, b, **options),
                 out.randn(*x), out.randn(*weight), out.randn(weight[0]))
    out.case("conv2d.no_bias", F.conv2d, out.randn(2, 3, 4, 4), out.randn(2, 3, 3, 3))
    pools = {
        "even": ((2, 3, 6, 8), {"kernel_size": 2}),
        "overlap": ((1, 2, 7, 7), {"kernel_size": 3, "stride": 2, "padding": 1}),
        "cut": ((2, 1, 5, 5), {"kernel_size": (2, 3), "stride": (3, 2)}),
        "global": ((2, 2, 4, 3), {"kernel_size": (4, 3)}),
    }
    for name, (x, options) in pools.items():
        out.case(f"max_pool2d.{name}", lambda x: F.max_pool2d(x, **options), out.randn(*x))
        out.case(f"avg_pool2d.{name}", lambda x: F.avg_pool2d(x, **options), out.randn(*x))
