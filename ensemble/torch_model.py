"""A language model as it is, and with its products routed to our kernels: the same tokens, how far logits are apart, and times."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cutlass_sk import override
from cutlass_sk.aten import Product
from cutlass_sk.ensemble.decoder import decoder
from cutlass_sk.ensemble.torch_load import Scale
from cutlass_sk.tracing import recording

Open = Callable[[], AbstractContextManager[Any]]
Call = Callable[[], torch.Tensor]


def model(dtype: torch.dtype, scale: Scale) -> dict[str, Any]:
    """A decoder in ``dtype``: forward, backward and generation, plain and under ``override``, eager, compiled and as a CUDA graph.

    routed, not_routed   products of a forward and backward pass, and ``reasons`` why they were left to torch
    tokens_equal         whether all ``tokens`` generated are the same; ``cublas_tokens_equal`` for another algorithm of cuBLAS
    *_max_error          largest difference to the logits of cuBLAS, and ``logits_tolerance`` the largest between its own algorithms
    *_exact_error        largest difference to the same model in float64
    *_gradient_error     of the first weight's gradient, likewise, over its largest element
    *_ms                 of a forward pass, unless the name says more
    errors               what could not be measured
    """
    network, tokens = decoder(scale.model, dtype, scale.device), scale.model.tokens(scale.device)
    prompt = tokens[:, : scale.model.prompt].contiguous()
    forward = partial(without_gradients, network, tokens)
    generate = partial(without_gradients, network.generate, prompt, scale.model.new)
    routed: Open = partial(override, cpu=scale.device == "cpu")
    record: dict[str, Any] = {"name": network.name, "dtype": str(dtype).removeprefix("torch."), "errors": {}}
    record |= _tokens(scale, generate, routed) | _differences(scale, network, tokens, routed)
    plain: dict[str, Call] = {"eager_ms": forward, "backward_ms": partial(gradient, network, tokens)}
    ours: dict[str, Call] = {"override_ms": forward, "backward_override_ms": plain["backward_ms"]}
    # Compiled once: what is compiled asks torch for its products, and so for ours while an override is open.
    compiled, expected = partial(without_gradients, torch.compile(network, backend=scale.backend), tokens), forward()
    for name, make in (("graph", partial(graphed, scale, forward)), ("compiled", lambda: compiled)):
        try:
            without = make()
            without()
            with routed():
                within = make()
                record[f"{name}_max_error"] = _apart(within(), expected)
            plain[f"{name}_ms"], ours[f"{name}_override_ms"] = without, within
        except Exception as error:  # the rest is worth having
            record["errors"][name] = f"{type(error).__name__}: {error}"[:400]
    record |= _times(scale, plain, routed, ours, scale.repeats)
    return record | _times(scale, {"generate_ms": generate}, routed, {"generate_override_ms": generate}, scale.repeats // 5)


def asked(dtype: torch.dtype, scale: Scale) -> Counter[Product]:
    """The products of ``model``, from a decoder without data. Of generation: the prompt, and one more token a sequence."""
    with FakeTensorMode(), recording() as counts:
        network, tokens = decoder(scale.model, dtype, "cpu"), scale.model.tokens("cpu")
        gradient(network, tokens)
        for length in (scale.model.prompt, 1):
            without_gradients(network, tokens[:, :length])
    return counts


def without_gradients(function: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
    with torch.no_grad():
        return function(*arguments)


def gradient(network: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of the loss of the next tokens, by the first weight that is multiplied with: a forward and a backward pass."""
    network.zero_grad(set_to_none=True)
    logits = network(tokens)[:, :-1].float()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").backward()
    weight = next(x for name, x in network.named_parameters() if x.dim() == 2 and "embed" not in name)
    assert weight.grad is not None
    return weight.grad


def graphed(scale: Scale, call: Call) -> Call:
    """``call`` captured: its replay, which gives what the capture made."""
    if scale.device == "cpu":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    scale.wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = call()

    def replay() -> torch.Tensor:
        graph.replay()
        return made

    return replay


def _tokens(scale: Scale, generate: Call, routed: Open) -> dict[str, Any]:
    theirs = generate()
    with routed():
        ours = generate()
    with other_algorithm(scale):
        others = generate()
    return {
        "tokens": scale.model.batch * scale.model.new,
        "tokens_equal": torch.equal(ours, theirs),
        "cublas_tokens_equal": torch.equal(others, theirs),
    }


@contextmanager
def other_algorithm(scale: Scale) -> Iterator[None]:
    """cuBLASLt in cuBLAS's place, and sums of parts in float32."""
    if scale.device == "cpu":
        yield
        return
    switches = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = [getattr(switches, name) for name in names]
    try:
        torch.backends.cuda.preferred_blas_library("cublaslt")
        for name in names:
            setattr(switches, name, False)
        yield
    finally:
        torch.backends.cuda.preferred_blas_library("default")
        for name, value in zip(names, before, strict=True):
            setattr(switches, name, value)


def _differences(scale: Scale, network: torch.nn.Module, tokens: torch.Tensor, routed: Open) -> dict[str, Any]:
    exact_network = copy.deepcopy(network).double()
    exact, theirs = (without_gradients(x, tokens) for x in (exact_network, network))
    exact_gradient, their_gradient = gradient(exact_network, tokens), gradient(network, tokens)
    with routed() as report:
        ours = without_gradients(network, tokens)
        seen = report.routed, report.not_routed
        our_gradient = gradient(network, tokens)
        routed_now, left_now = report.routed - seen[0], report.not_routed - seen[1]
    with other_algorithm(scale):
        others = [without_gradients(network, tokens)]
    others.append(torch.cat([without_gradients(network, sequence) for sequence in tokens.split(1)]))
    largest = float(exact_gradient.abs().max())
    return {
        "routed": routed_now,
        "not_routed": left_now,
        "reasons": report.reasons,
        "logits_max_error": _apart(ours, theirs),
        "logits_tolerance": max(_apart(other, theirs) for other in others),
        "logits_exact_error": _apart(ours, exact),
        "cublas_exact_error": _apart(theirs, exact),
        "gradient_error": _apart(our_gradient, exact_gradient) / largest,
        "cublas_gradient_error": _apart(their_gradient, exact_gradient) / largest,
    }


def _apart(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.double() - y.double()).abs().max())


def _times(scale: Scale, plain: Mapping[str, Call], routed: Open, ours: Mapping[str, Call], repeats: int) -> dict[str, float]:
    """Median milliseconds by the clock, the GPU waited for, in turns. A call goes before each: an override has seen nothing yet."""
    groups: tuple[tuple[Open, Mapping[str, Call]], ...] = (nullcontext, plain), (routed, ours)
    times: dict[str, list[float]] = {name: [] for name in (*plain, *ours)}
    for _ in range(max(1, repeats)):
        for opened, calls in groups:
            with opened():
                for name, call in calls.items():
                    call()
                    scale.wait()
                    begin = time.perf_counter()
                    call()
                    scale.wait()
                    times[name].append((time.perf_counter() - begin) * 1e3)
    return {name: round(median(values), 4) for name, values in times.items()}
