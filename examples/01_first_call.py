"""A product on a Stream-K kernel: as an object for one dtype, and as a function with torch's semantics."""

import torch

import cutlass_sk

device = "cuda" if torch.cuda.is_available() else "cpu"  # on the CPU a slow reference executes the same plans
a = torch.randn(100, 512, dtype=torch.float16, device=device)
b = torch.randn(512, 200, dtype=torch.float16, device=device)

gemm = cutlass_sk.Gemm("float16")
c = gemm.run(a, b)  # the first call compiles a kernel, unless an earlier process did

torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-1)
assert torch.equal(cutlass_sk.matmul(a, b), c)  # the same kernel, the same plan, the same bits
print(c.shape, c.dtype, c.device)
