"""Matrix products and linear layers."""

import torch
import torch.nn.functional as F


def make(out):
    shapes = {
        "square": ((4, 4), (4, 4)),
        "odd": ((5, 7), (7, 3)),
        "single": ((1, 1), (1, 1)),
        "batch": ((3, 2, 5), (3, 5, 4)),
        "broadcast": ((2, 1, 3, 4), (3, 4, 2)),
        "tall": ((2, 3, 5), (5, 4)),
        "edges": ((13, 9), (9, 33)),
    }
    for name, (a, b) in shapes.items():
        out.case(f"matmul.{name}", torch.matmul, out.randn(*a), out.randn(*b))
    out.case("matmul.transposed_a", lambda a, b: a.t() @ b, out.randn(5, 3), out.randn(5, 4))
    out.case("matmul.transposed_b", lambda a, b: a @ b.t(), out.randn(3, 5), out.randn(4, 5))
    for name, dtype in {"bf16": torch.bfloat16, "f16": torch.float16}.items():
        # Exact products and sums, rounded once.
        a, b = out.randn(6, 9, dtype=dtype), out.randn(9, 5, dtype=dtype)
        out.add(f"matmul.{name}.in0", a)
        out.add(f"matmul.{name}.in1", b)
        out.add(f"matmul.{name}.out", (a.double() @ b.double()).float().to(dtype))
    out.case("linear.plain", F.linear, out.randn(5, 7), out.randn(3, 7))
    out.case("linear.bias", F.linear, out.randn(5, 7), out.randn(3, 7), out.randn(3))
    out.case("linear.cube", F.linear, out.randn(2, 3, 4), out.randn(6, 4), out.randn(6))
    out.case("linear.vector", F.linear, out.randn(4), out.randn(6, 4), out.randn(6))
