"""Which kernel computes a piece on which device, and why."""

import torch

from rueda.attention.device import _libraries as libraries
from rueda.attention.device import _own, _partial, _scores
from rueda.attention.device._blocks import Blocks
from rueda.attention.device._program import BAND, CAUSAL

# In the order in which they are tried. "cpu" serves CPU tensors only where it is asked for: the library's own executor
# has faster kernels.
_HOPPER = [libraries.Cudnn(), libraries.Flash3(), libraries.Flash2(), libraries.Flash(), libraries.Efficient()]
_OTHER = [_HOPPER[i] for i in (2, 3, 0, 1, 4)]
_OWN = _own.Own()
_EVERYTHING = [_OWN, Blocks()]
_FOR_CPU = [libraries.OnCpu()]
_asked = {}  # device type -> name


def _list(device, capability):
    if device == "cpu":
        return (_FOR_CPU if device in _asked else []) + _EVERYTHING
    order = _HOPPER if capability is None or 90 <= capability < 100 else _OTHER
    return order + _EVERYTHING


def _capability(device):
    device = torch.device(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def use_kernel(name="auto", device="cuda"):
    """From now on calls on tensors of ``device`` use this kernel where it can, and "cuda" or "torch" where it cannot."""
    kind = torch.device(device).type
    names = [kernel.name for kernel in _HOPPER + _FOR_CPU + _EVERYTHING]
    if name == "auto":
        _asked.pop(kind, None)
    elif name in names:
        _asked[kind] = name
    else:
        raise ValueError(f"no kernel {name!r} for {device}: there are auto, {', '.join(names)}")


def _candidates(device, dtype, head_dim, scores=_scores.PLAIN):
    """(kernel or None, what each of the list says)."""
    kind, capability = torch.device(device).type, _capability(device)
    said, found = [], None
    for kernel in _list(kind, capability):
        rest = () if _asked.get(kind) == "torch" else ("cuda", "torch")
        if kind in _asked and kernel.name not in (_asked[kind], *rest):
            continue
        why = kernel.refuses(kind, dtype, head_dim, capability) or kernel.lacks(scores)
        said.append((kernel, why))
        if why is None and found is None:
            found = kernel
    return found, said


def kernel_for(dtype, head_dim, device):
    """(name, why): the kernel of full and causal pieces on this device."""
    kind = torch.device(device).type
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype)
    found, said = _candidates(device, dtype, head_dim)
    before = "; ".join(f"{kernel.name} {why}" for kernel, why in said[: [k for k, _ in said].index(found)])
    why = f"{found.what}; " + ("asked for by name" if kind in _asked else "the first of the list that can")
    return found.name, why + (f" ({before})" if before else "")


class Chosen:
    """The kernels of a call: ``main`` for full and causal pieces, ``other`` for the rest. ``wants_delta``: none that would compute
    sum(dout * out) itself, as there is a gradient of lse, or no out where queries travel. ``scores``: what becomes of them; of the ranks
    of a call all are alike in which changes there are."""

    def __init__(self, q, wants_delta=False, scores=_scores.PLAIN):
        self.main, said = _candidates(q.device, q.dtype, q.shape[-1], scores)
        takes = [k for k, why in said if why is None and k.takes_delta]
        self.other = takes[0] if takes else _EVERYTHING[-1]
        self.own_merge = _OWN.refuses(q.device.type, q.dtype, q.shape[-1], None) is None
        if wants_delta and not self.main.takes_delta:
            self.main = self.other

    def _of(self, piece):
        return self.main if piece.kind != BAND and self.main.fits(piece) else self.other

    def split(self, pieces):
        """(pieces for our own kernel, which takes many at once; the others)."""
        own = tuple(piece for piece in pieces if isinstance(self._of(piece), _own.Own))
        return own, [piece for piece in pieces if not isinstance(self._of(piece), _own.Own)]

    def forward(self, piece, into, q, k, v, scale, scores, fresh=False):
        """Adds a piece to partial sums: views of its own rows and heads. ``fresh``: their acc is not set yet."""
        kernel, causal = self._of(piece), piece.kind == CAUSAL
        if isinstance(kernel, Blocks):
            partials = kernel.partials(q, k, v, scale, causal, piece.place, scores)
        else:
            out, lse = kernel.forward(q, k, v, scale, causal, scores, piece.place)
            if self.own_merge and _own.merge(into, out, lse, fresh):
                return
            partials = [(slice(None), (out, lse, None))]
        if fresh:
            into[0].zero_()
        for rows, partial in partials:
            _partial.add((into[0][:, rows], into[1][:, :, rows], into[2][:, :, rows]), partial)

    def backward(self, piece, grads, dout, q, k, v, out, lse, delta, scale, scores, fresh=(False,) * 3):
        """Adds a piece's to dq, dk, dv, float32: views of its own rows and heads. ``fresh``: which of them are not set yet."""
        kernel, causal = self._of(piece), piece.kind == CAUSAL
        if isinstance(kernel, Blocks):
            parts = kernel.backward(dout, q, k, v, lse, delta, scale, causal, piece.place, scores)
        else:
            parts = kernel.backward(dout, q, k, v, out, lse, scale, causal, scores, piece.place)
        for into, part, new in zip(grads, parts, fresh):
            if self.own_merge and _own.add(into, part, new):
                continue
            if new:
                into.copy_(part)
            else:
                into.add_(part)

    def finish(self, acc, m, sums, out, low):
        """As `_partial.finish`."""
        if low is not None or not (self.own_merge and _own.finish(acc, m, sums, out)):
            _partial.finish(acc, m, sums, out, low)

    def forward_own(self, pieces, *tensors_and_more):
        """Many pieces of the same heads, whose rows are those of the tensors: as `_own.Own.add`."""
        _OWN.add(pieces, *tensors_and_more)

    def backward_own(self, pieces, *tensors_and_more):
        """As `_own.Own.add_gradients`."""
        _OWN.add_gradients(pieces, *tensors_and_more)
