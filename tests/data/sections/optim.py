"""Ten steps of each optimizer on one vector, with given gradients."""

import torch

CASES = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd.decay": (torch.optim.SGD, dict(lr=0.1, weight_decay=0.05)),
    "sgd.momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd.dampening": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05)),
    "sgd.nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.05)),
    "sgd.maximize": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, maximize=True)),
    "adam": (torch.optim.Adam, dict(lr=0.01)),
    "adam.decay": (torch.optim.Adam, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    "adam.amsgrad": (torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
    "adam.maximize": (torch.optim.Adam, dict(lr=0.01, maximize=True)),
    "adamw": (torch.optim.AdamW, dict(lr=0.01)),
    "adamw.decay": (torch.optim.AdamW, dict(lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    "adamw.amsgrad": (torch.optim.AdamW, dict(lr=0.01, amsgrad=True, weight_decay=0.1)),
}


def make(out):
    start, gradients = out.randn(7), out.randn(10, 7)
    out.add("start", start)
    out.add("gradients", gradients)
    for name, (kind, options) in CASES.items():
        for dtype, suffix in ((torch.float32, ""), (torch.float64, ".f64")):
            parameter = start.to(dtype).clone().requires_grad_()
            optimizer = kind([parameter], **options)
            steps = []
            for gradient in gradients:
                parameter.grad = gradient.to(dtype)
                optimizer.step()
                steps.append(parameter.detach().clone())
            out.add(name + suffix, torch.stack(steps))
