"""What would be launched, and why: no GPU is needed to ask."""

from cutlass_sk import Gemm

gemm = Gemm("float16", device="h200")
plan = gemm.plan(768, 512, 16384)  # few tiles and a long k
print(plan)

why = gemm.explain(768, 512, 16384)
assert why.plan == plan
print(why.why())

forced = gemm.plan(768, 512, 16384, decomposition="data_parallel")
print(f"data-parallel: {forced.predicted_time_us:.1f} us expected, instead of {plan.predicted_time_us:.1f}")
assert plan.predicted_time_us < forced.predicted_time_us
