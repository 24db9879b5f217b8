"""Element-wise operations: values, gradients, broadcasting, low precision."""

import torch
import torch.nn.functional as F

UNARY = {
    "neg": torch.neg, "exp": torch.exp, "abs": torch.abs, "sin": torch.sin, "cos": torch.cos,
    "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "clamp": lambda x: x.clamp(-0.5, 0.75), "add_scalar": lambda x: x + 1.5,
    "sub_scalar": lambda x: x - 1.5, "mul_scalar": lambda x: x * -0.3, "div_scalar": lambda x: x / 3,
    "square": lambda x: x.pow(2), "cube": lambda x: x.pow(3),
}
POSITIVE = {
    "log": torch.log, "sqrt": torch.sqrt, "pow": lambda x: x.pow(1.7),
    "rsqrt": lambda x: x.pow(-0.5), "reciprocal": lambda x: x.pow(-1),
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "maximum": torch.maximum, "minimum": torch.minimum,
}
COMPARE = {
    "equal": torch.eq, "not_equal": torch.ne, "less": torch.lt, "less_equal": torch.le,
    "greater": torch.gt, "greater_equal": torch.ge,
}


def make(out):
    special = torch.tensor([0.0, -0.0, 20.0, -20.0, 1e-5, -1e-5, 0.75, -0.5])
    for name, function in UNARY.items():
        out.case(name, function, torch.cat([special, 2 * out.randn(13)]))
        out.case(name + ".bf16", function, 2 * out.randn(5, dtype=torch.bfloat16))
    for name, function in POSITIVE.items():
        out.case(name, function, 4 * out.rand(17) + 0.01)
    for name, function in BINARY.items():
        out.case(name, function, out.randn(3, 4), out.randn(3, 4) + 3)
        out.case(name + ".row", function, out.randn(3, 4), out.randn(4) + 3)
        out.case(name + ".channel", function, out.randn(2, 3, 2, 2), out.randn(3, 1, 1) + 3)
        out.case(name + ".outer", function, out.randn(3, 1), out.randn(1, 4) + 3)
        out.case(name + ".rank0", function, out.randn(2, 3), out.randn() + 3)
        out.case(name + ".bf16", function, out.randn(6, dtype=torch.bfloat16),
                 out.randn(6, dtype=torch.bfloat16) + 3)
        out.case(name + ".mixed", function, out.randn(2, 3, dtype=torch.float16), out.randn(3) + 3)
        out.case(name + ".integer", function, out.randint(-9, 9, 6), out.randint(1, 9, 6))
        ties = torch.tensor([1.0, 2.0, 3.0])
        out.case(name + ".ties", function, ties, torch.tensor([1.0, 3.0, 2.0]))
    for name, function in COMPARE.items():
        out.case(name, function, out.randint(0, 3, 3, 4), out.randint(0, 3, 4).float())
    out.case("where", torch.where, out.randn(2, 3) > 0, out.randn(3), out.randn(2, 1))
    values = torch.tensor([1.0, float("inf"), float("-inf"), float("nan"), 0.0])
    out.case("isfinite", torch.isfinite, values)
