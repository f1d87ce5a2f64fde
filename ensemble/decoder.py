"""A small language model to multiply with: Llama of ``transformers`` where that is installed, else the same architecture in torch.

Weights are random, but for the head, which prefers the token that follows in the vocabulary: where a random head chooses, the two
best logits are often nearer to each other than rounding is, and two cuBLAS algorithms already generate different tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Of a decoder, and of its tokens: ``batch`` sequences of ``length``, or of ``prompt``, after which ``new`` are generated."""

    width: int = 2048
    hidden: int = 5632
    layers: int = 4
    heads: int = 16
    kv_heads: int = 4
    vocabulary: int = 16384
    batch: int = 4
    length: int = 1024
    prompt: int = 64
    new: int = 32

    def tokens(self, device: str) -> torch.Tensor:
        """(batch, length), random."""
        return torch.randint(self.vocabulary, (self.batch, self.length), device=device)


class Layer(torch.nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, width = shape.heads, shape.kv_heads, shape.width
        self.head = width // shape.heads
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.qkv = torch.nn.Linear(width, (shape.heads + 2 * shape.kv_heads) * self.head, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 2 * shape.hidden, bias=False)
        self.down = torch.nn.Linear(shape.hidden, width, bias=False)

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, -1, self.head).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        seen = functional.scaled_dot_product_attention(_turned(q, *turns), _turned(k, *turns), v, is_causal=True, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        made: torch.Tensor = x + self.down(functional.silu(gate) * up)
        return made


def _turned(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Each position's halves, turned by its angles."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


class Own(torch.nn.Module):
    """tokens (batch, length) -> logits (batch, length, vocabulary)."""

    name = "Llama's architecture in torch"

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.embedding = torch.nn.Embedding(shape.vocabulary, shape.width)
        self.layers = torch.nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = torch.nn.RMSNorm(shape.width, eps=1e-6)
        self.head = torch.nn.Linear(shape.width, shape.vocabulary, bias=False)
        for matrix in (weight for weight in self.parameters() if weight.dim() == 2):
            torch.nn.init.normal_(matrix, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        speeds = 10_000.0 ** (-torch.arange(0, self.head_width, 2, device=x.device) / self.head_width)
        angles = torch.outer(torch.arange(tokens.shape[1], device=x.device), speeds)
        turns = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, turns)
        made: torch.Tensor = self.head(self.norm(x))
        return made

    def generate(self, tokens: torch.Tensor, new: int) -> torch.Tensor:
        """The tokens and the ``new`` ones that follow, greedily; all of the sequence is run for each."""
        for _ in range(new):
            tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], 1)
        return tokens


class Llama(torch.nn.Module):
    """The same of ``transformers``, which keeps keys and values while it generates."""

    def __init__(self, shape: Shape) -> None:
        import transformers

        super().__init__()
        self.name = f"LlamaForCausalLM of transformers {transformers.__version__}"
        configuration = transformers.LlamaConfig(
            hidden_size=shape.width,
            intermediate_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            vocab_size=shape.vocabulary,
            max_position_embeddings=2 * shape.length,
            bos_token_id=None,
            eos_token_id=None,
        )
        self.model = transformers.LlamaForCausalLM(configuration)
        self.embedding, self.head = self.model.get_input_embeddings(), self.model.get_output_embeddings()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.model(tokens, use_cache=False).logits
        return made

    def generate(self, tokens: torch.Tensor, new: int) -> torch.Tensor:
        made: torch.Tensor = self.model.generate(
            tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new, do_sample=False, pad_token_id=0
        )
        return made


def decoder(shape: Shape, dtype: torch.dtype, device: str) -> Any:
    """An ``Own`` or a ``Llama`` on ``device``, from a seed."""
    torch.manual_seed(0)
    made: Any
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # not made.to(dtype): angles stay float32
    try:
        with torch.device(device):
            try:
                made = Llama(shape)
            except ImportError:  # not there, or not whole
                made = Own(shape)
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        made.embedding.weight.normal_()
        made.head.weight.copy_(0.02 * made.embedding.weight.roll(1, 0))
    return made.eval()
