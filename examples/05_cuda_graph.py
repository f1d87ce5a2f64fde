"""A product in a CUDA graph, replayed on other operands. Needs a GPU."""

import torch

import cutlass_sk

if not torch.cuda.is_available():
    raise SystemExit("a CUDA graph needs a GPU, and torch finds none")

a, b = (torch.randn(256, 4096, dtype=torch.float16, device="cuda") for _ in range(2))
cutlass_sk.matmul(a, b.t())  # not necessary: but what is not compiled yet is compiled within the capture otherwise

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    c = cutlass_sk.matmul(a, b.t())

for _ in range(3):
    a.normal_()
    graph.replay()
    assert torch.equal(c, cutlass_sk.matmul(a, b.t()))
print("replayed", tuple(c.shape))
