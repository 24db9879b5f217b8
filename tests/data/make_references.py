"""Writes the reference values of README.md with PyTorch: make_references.py [family ...]"""

import importlib
import math
import pathlib
import sys

import torch

HERE = pathlib.Path(__file__).resolve().parent
DTYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "bool",
}


def text(value):
    """A number, exactly and briefly."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int) or (math.isfinite(value) and value == int(value) and abs(value) < 1e6):
        return "-0" if value == 0 and math.copysign(1, value) < 0 else str(int(value))
    if not math.isfinite(value):
        return str(value)
    mantissa, exponent = float(value).hex().split("p")
    return mantissa.rstrip("0").rstrip(".") + "p" + str(int(exponent))


class Output:
    """Collects the tensors of one family; makes pseudo-random inputs."""

    def __init__(self, family):
        self.generator = torch.Generator().manual_seed(sum(map(ord, family)))
        self.lines = []
        self.names = set()

    def randn(self, *shape, dtype=torch.float32):
        return torch.randn(shape, generator=self.generator).to(dtype)

    def rand(self, *shape, dtype=torch.float32):
        return torch.rand(shape, generator=self.generator).to(dtype)

    def randint(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.generator)

    def add(self, name, tensor):
        assert name not in self.names and " " not in name, name
        self.names.add(name)
        tensor = tensor.detach()
        sizes = "".join(f" {size}" for size in tensor.shape)
        self.lines.append(f"tensor {name} {DTYPES[tensor.dtype]}{sizes}")
        wide = tensor.double() if tensor.is_floating_point() else tensor
        self.lines.append(" ".join(text(value) for value in wide.flatten().tolist()))

    def case(self, name, function, *inputs, gradient=True):
        """An operation's inputs, output, and the gradients of its floating inputs."""
        leaves = [x.detach().clone().requires_grad_(gradient and x.is_floating_point()) for x in inputs]
        for i, leaf in enumerate(leaves):
            self.add(f"{name}.in{i}", leaf)
        result = function(*leaves)
        self.add(f"{name}.out", result)
        if not result.requires_grad:
            return
        grad = self.randn(*result.shape, dtype=result.dtype)
        self.add(f"{name}.grad", grad)
        result.backward(grad)
        for i, leaf in enumerate(leaves):
            if leaf.grad is not None:
                self.add(f"{name}.in{i}.grad", leaf.grad)


def write(family):
    out = Output(family)
    importlib.import_module(f"sections.{family}").make(out)
    header = [f"# Reference values of {family}; PyTorch {torch.__version__}; see README.md"]
    (HERE / f"{family}.txt").write_text("\n".join(header + out.lines) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    families = sys.argv[1:] or sorted(path.stem for path in (HERE / "sections").glob("*.py"))
    for name in families:
        write(name)
