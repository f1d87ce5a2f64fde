"""Modules on Stream-K kernels, with the names, parameters and state of torch.nn's."""

from __future__ import annotations

import torch

from .functional import linear


class Linear(torch.nn.Linear):
    """torch.nn.Linear by ``cutlass_sk.linear``: same arguments, parameters and state_dict. float16, bfloat16, float64; autocast.

    Parameters are torch's default float32 unless ``dtype`` says otherwise. A module of float32 can be made, loaded and cast
    (``.half()``); called outside autocast, it raises DtypeError.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features)."""
        return linear(input, self.weight, self.bias)
