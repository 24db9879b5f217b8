"""Casts between all dtypes of values that every one of them can hold or round."""

import torch

NAMES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool,
}


def make(out):
    values = torch.tensor([0, 1, 2.5, 3.14159274, 100.7, 17, 250.99, 0.1], dtype=torch.float64)
    for source, source_dtype in NAMES.items():
        for target, target_dtype in NAMES.items():
            x = values.to(source_dtype)
            gradient = x.is_floating_point() and target_dtype.is_floating_point
            if source != target:
                out.case(f"{source}.{target}", lambda x: x.to(target_dtype), x, gradient=gradient)
