"""Batch and layer normalisation."""

import torch
import torch.nn.functional as F


def make(out):
    for name, shape in (("flat", (6, 3)), ("images", (3, 4, 3, 5)), ("wide", (2, 1, 7, 7))):
        for training in (True, False):
            mean, var = out.randn(shape[1]), out.rand(shape[1]) + 0.5
            prefix = f"batch_norm.{name}.{'train' if training else 'eval'}"
            out.add(f"{prefix}.mean_before", mean)
            out.add(f"{prefix}.var_before", var)
            out.case(prefix,
                     lambda x, w, b: F.batch_norm(x, mean, var, w, b, training, 0.1, 1e-5),
                     out.randn(*shape) * 2 + 1, out.randn(shape[1]), out.randn(shape[1]))
            out.add(f"{prefix}.mean_after", mean)
            out.add(f"{prefix}.var_after", var)
    out.case("batch_norm.plain", lambda x: F.batch_norm(x, None, None, training=True),
             out.randn(4, 3, 2, 2))
    out.case("layer_norm.row", lambda x, w, b: F.layer_norm(x, (7,), w, b),
             out.randn(3, 7) + 3, out.randn(7), out.randn(7))
    out.case("layer_norm.block", lambda x, w, b: F.layer_norm(x, (3, 4), w, b, 1e-3),
             out.randn(2, 2, 3, 4), out.randn(3, 4), out.randn(3, 4))
    out.case("layer_norm.weight", lambda x, w: F.layer_norm(x, (70,), w),
             out.randn(2, 70), out.randn(70))
    out.case("layer_norm.plain", lambda x: F.layer_norm(x, (6,)), out.randn(4, 6))
