"""Forward engines: where and in which precision a batch of encodings meets a network."""

import copy
from typing import Literal

import numpy as np
import torch
from torch import nn

from asynccfr.games.base import FloatArray

Precision = Literal["float32", "bfloat16"]

BFLOAT16_FROM_WIDTH = 256
"""Below this width a CPU forward is bound by call overhead, and bfloat16 buys nothing."""


def resolve_precision(
    precision: Literal["auto", "float32", "bfloat16"], device: torch.device, hidden_size: int
) -> Precision:
    """`auto` becomes bfloat16 where the hardware computes in it and the network is wide enough."""
    if precision != "auto":
        return precision
    wide = hidden_size >= BFLOAT16_FROM_WIDTH
    return "bfloat16" if wide and computes_bfloat16(device) else "float32"


def computes_bfloat16(device: torch.device) -> bool:
    """Whether `device` multiplies matrices in bfloat16 itself; emulation is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def padded_rows(count: int) -> int:
    """The batch size at which `count` rows are computed: a power of two, or a multiple of 64.

    oneDNN compiles a kernel for each new shape, which costs more than the forward itself; a few
    dozen sizes are soon all compiled.
    """
    if count > 64:
        return (count + 63) // 64 * 64
    return 1 << (count - 1).bit_length() if count > 0 else 0


class EagerEngine:
    """PyTorch as it is: the reference that every other engine must agree with.

    Not thread-safe: one thread loads and runs. On CUDA it has a stream of its own and one pair
    of pinned buffers, which grow to the largest batch seen; a batch is copied in and out without
    blocking and synchronised once.
    """

    def __init__(self, device: torch.device, precision: Precision = "float32") -> None:
        self.device = device
        self.precision = precision
        self._dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self._networks: dict[str, nn.Module] = {}
        self._on_cuda = device.type == "cuda"
        if self._on_cuda:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._rows = torch.empty(0, 0, pin_memory=True)
            self._outputs = torch.empty(0, 0, pin_memory=True)

    def load(self, name: str, network: nn.Module) -> None:
        """Takes a copy of `network`'s weights, converted to the engine's precision."""
        frozen = copy.deepcopy(network).to(self.device, self._dtype).eval()
        if self._on_cuda:
            # The copies ran on another stream than the forwards will.
            torch.cuda.synchronize(self.device)
        self._networks[name] = frozen.requires_grad_(False)

    @torch.inference_mode()
    def forward(self, name: str, rows: FloatArray) -> FloatArray:
        """float32[B, F] -> float32[B, A] on the host."""
        network = self._networks[name]
        if self._on_cuda:
            return self._forward_cuda(network, rows)
        count = len(rows)
        padded = padded_rows(count)
        if padded != count:
            rows = np.concatenate((rows, np.zeros((padded - count, rows.shape[1]), np.float32)))
        outputs: torch.Tensor = network(torch.from_numpy(rows).to(self._dtype))
        return outputs.float().numpy()[:count]

    def _forward_cuda(self, network: nn.Module, rows: FloatArray) -> FloatArray:
        count = len(rows)
        if len(self._rows) < count:
            self._rows = torch.empty(count, rows.shape[1], pin_memory=True)
        self._rows[:count].numpy()[:] = rows
        with torch.cuda.stream(self._stream):
            inputs = self._rows[:count].to(self.device, non_blocking=True).to(self._dtype)
            outputs = network(inputs).float()
            if len(self._outputs) < count:
                self._outputs = torch.empty(count, outputs.shape[1], pin_memory=True)
            self._outputs[:count].copy_(outputs, non_blocking=True)
        self._stream.synchronize()
        return np.array(self._outputs[:count].numpy())
