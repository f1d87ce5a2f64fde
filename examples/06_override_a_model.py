"""A model as it is, its products on our kernels while an override is open; and what would come of that, without running it."""

import torch

import cutlass_sk

on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0, device=device, dtype=torch.float16)
x = torch.randn(2, 32, 64, device=device, dtype=torch.float16)

expected = layer(x)
with cutlass_sk.override(cpu=not on_gpu) as report:  # the CPU's reference is for trying things out
    made = layer(x)
    made.sum().backward()
print(report)
assert report.routed >= 11
torch.testing.assert_close(made, expected, rtol=2e-2, atol=2e-2)

trace = cutlass_sk.trace(layer.to("meta"), torch.empty(64, 512, 64, device="meta", dtype=torch.float16), device="h200")
print(trace)
