"""A small convolutional network: logits, loss and every gradient of its first step, and what ten
steps of each optimizer make of it. Gradients are clipped to a norm of 1."""

import torch
from torch import nn

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}


def network():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.GELU(), nn.Flatten(),
        nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))  # fmt: skip


def make(out):
    torch.manual_seed(7)
    start = network().double().state_dict()
    x, targets = out.randn(5, 2, 8, 8, dtype=torch.float64), out.randint(0, 3, 5)
    out.add("x", x)
    out.add("targets", targets)
    for name, value in start.items():
        out.add(f"start.{name}", value)
    for name, make_optimizer in OPTIMIZERS.items():
        net = network().double()
        net.load_state_dict(start)
        optimizer = make_optimizer(net.parameters())
        losses, norms = [], []
        for step in range(10):
            logits = net(x)
            loss = nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            if step == 0 and name == "sgd":
                out.add("logits", logits)
                for key, parameter in net.named_parameters():
                    out.add(f"gradient.{key}", parameter.grad.clone())
            norms.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0))
            optimizer.step()
            losses.append(loss.detach())
        out.add(f"{name}.losses", torch.stack(losses))
        out.add(f"{name}.norms", torch.stack(norms))
        for key, value in net.state_dict().items():
            out.add(f"{name}.end.{key}", value)
        net.eval()
        out.add(f"{name}.eval_logits", net(x))
