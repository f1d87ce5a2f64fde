"""The laboratory: compares cutlass_sk with other ways to multiply, in time and in accuracy."""
