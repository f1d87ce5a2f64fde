"""A layer that learns: torch.nn.Linear's parameters and state, products of ours forward and backward."""

import torch

import cutlass_sk

device = "cuda" if torch.cuda.is_available() else "cpu"
theirs = torch.nn.Linear(64, 32, dtype=torch.float16, device=device)
ours = cutlass_sk.nn.Linear(64, 32, dtype=torch.float16, device=device)
ours.load_state_dict(theirs.state_dict())

x = torch.randn(4, 16, 64, dtype=torch.float16, device=device)
for layer in (theirs, ours):
    layer(x).square().sum().backward()

torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=2e-2, atol=0.1)
print("largest gradient", float(ours.weight.grad.abs().max()))
