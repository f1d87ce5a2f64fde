"""Under torch.compile: no graph break, any number of rows, the bits of the eager call."""

import torch

from cutlass_sk import matmul

device = "cuda" if torch.cuda.is_available() else "cpu"
weight = torch.randn(64, 128, dtype=torch.float16, device=device)


def layer(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(matmul(x, weight.t())) + 1


compiled = torch.compile(layer, fullgraph=True, dynamic=True)
for rows in (16, 24, 40):
    x = torch.randn(rows, 128, dtype=torch.float16, device=device)
    assert torch.equal(compiled(x), layer(x))
    print(rows, "rows: the same bits")
