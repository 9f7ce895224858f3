"""Attention kernels of libraries, made alike.

Each has ``forward(q, k, v, scale, causal, scores, place) -> (out, lse)`` and ``backward(dout, q, k, v, out, lse, scale, causal, scores,
place) -> (dq, dk, dv)`` on (batch, rows, heads, head_dim), lse (batch, heads, rows) float32, natural logarithm. ``causal`` is a square.
``scores``: what becomes of them (`_scores.Scores`); ``place``: with ALiBi, a `Piece`'s. ``lacks`` says what of it a library has not, ``fits``
whether its ALiBi can be that of a piece.

out and lse of backward are those of the whole softmax, of which these keys are a part: no library looks whether they fit, and each
takes sum(dout * out) for what the gradient of lse would change, so calls with one do not come here.

What they do differently, and where it is made alike:

============  ==========================  =====================================================================
library       log-sum-exp                 else
============  ==========================  =====================================================================
cudnn         (b, h, s, 1)                16-bit; backward wants seeds even without dropout
flash3        (b, h, s), -inf without key 16-bit, Hopper; names of arguments differ by version
flash2        (b, h, s), (b, h, s rounded 16-bit; +inf without key; windows as a pair or two numbers; 4 or 8 results by
              up) in old ones; causal     version; ALiBi of a causal call is slope * column, which leaves out what a
              ALiBi: too large            query's scores have in common
flash         (b, h, s)                   PyTorch's own FlashAttention-2; nine results
efficient     (b, h, s rounded up to 32)  also float32; as many KV as query heads; backward wants the padding
cpu           (b, h, s), other strides    the same shapes on a CPU, to test what is around the others
============  ==========================  =====================================================================
"""

import functools
import importlib
import inspect

import torch

from rueda.attention.device._program import CAUSAL
from rueda.attention.device._scores import PLAIN

_HALF = (torch.float16, torch.bfloat16)
_OURS = ("dout", "q", "k", "v", "out", "softmax_lse", "dq", "dk", "dv")


def natural(lse, batch, heads, rows):
    """Any library's log-sum-exp as (batch, heads, rows) float32, -infinity for a query without keys."""
    if lse.dim() == 4 and lse.shape[-1] == 1:
        lse = lse.squeeze(-1)
    if lse.dim() != 3 or tuple(lse.shape[:2]) != (batch, heads) or lse.shape[2] < rows:
        raise RuntimeError(
            f"attention: this library's log-sum-exp has shape {tuple(lse.shape)}, expected ({batch}, {heads}, {rows}) "
            "or more rows; use_kernel('torch', device=...) does without it"
        )
    if lse.dtype != torch.float32:
        raise RuntimeError(f"attention: this library's log-sum-exp is {lse.dtype}, expected float32")
    lse = lse[:, :, :rows]
    return torch.where(torch.isposinf(lse), torch.full_like(lse, -torch.inf), lse)


def _padded(x, width):
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))


def _up(number, to):
    return (number + to - 1) // to * to


class Library:
    """A library's kernel; subclasses say what it takes and how it is called."""

    name = ""
    what = ""
    kinds = ("full", "causal")
    takes_delta = False  # whether backward may be given delta with a gradient of lse in it
    device = "cuda"
    dtypes = _HALF
    head_dim = 256  # at most
    multiple = 8  # elements to which head_dim is padded
    shares_keys = True  # fewer KV heads than query heads
    capability = 80  # of the GPU, at least

    def missing(self):
        """Why this process cannot use it, or None."""
        return None

    def refuses(self, device, dtype, head_dim, capability):
        """Why it does not take such tensors, or None."""
        if device != self.device:
            return f"is for {self.device}"
        if dtype not in self.dtypes:
            return f"takes no {str(dtype)[6:]}"
        if head_dim > self.head_dim:
            return f"takes head_dim up to {self.head_dim}"
        if device == "cuda" and capability is not None and capability < self.capability:
            return f"needs compute capability {self.capability / 10}"
        return self.missing()

    def lacks(self, scores):
        """What it cannot make of scores, or None."""
        if scores.softcap:
            return "has no softcap"
        return None if scores.slopes is None else "has no ALiBi"

    def fits(self, piece):
        """Whether it computes a full or causal piece of a call of which it lacks nothing."""
        return True

    def _asked(self, scores, place, queries, keys):
        """More arguments of its functions, by name."""
        return {}

    def forward(self, q, k, v, scale, causal, scores=PLAIN, place=None):
        width = q.shape[-1]
        k, v = self._shared(q, k, v)
        q, k, v = (_padded(x, _up(width, self.multiple)) for x in (q, k, v))
        out, lse = self._forward(q, k, v, scale, causal, **self._asked(scores, place, q.shape[1], k.shape[1]))
        return out[..., :width], natural(lse, q.shape[0], q.shape[2], q.shape[1])

    def backward(self, dout, q, k, v, out, lse, scale, causal, scores=PLAIN, place=None):
        width, heads = q.shape[-1], k.shape[2]
        k, v = self._shared(q, k, v)
        more = _up(width, self.multiple)
        dout, q, k, v, out = (_padded(x, more) for x in (dout, q, k, v, out))
        asked = self._asked(scores, place, q.shape[1], k.shape[1])
        grads = self._backward(dout, q, k, v, out, lse.contiguous(), scale, causal, **asked)
        dq, dk, dv = (x[..., :width] for x in grads)
        if heads != dk.shape[2]:
            shape = (*dk.shape[:2], heads, dk.shape[2] // heads, width)
            dk, dv = (x.reshape(shape).sum(3, dtype=torch.float32) for x in (dk, dv))
        return dq, dk, dv

    def _shared(self, q, k, v):
        group = q.shape[2] // k.shape[2]
        if group == 1 or self.shares_keys:
            return k, v
        return k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)


class _Aten(Library):
    """PyTorch's operators; they have heads before rows."""

    operator = ""
    usable = ""  # the function of torch.backends.cuda that knows this build, GPU and its switches

    def missing(self):
        return None if hasattr(torch.ops.aten, self.operator) else f"PyTorch {torch.__version__} has none"

    @functools.lru_cache(maxsize=None)
    def refuses(self, device, dtype, head_dim, capability):
        why = super().refuses(device, dtype, head_dim, capability)
        asked = getattr(torch.backends.cuda, self.usable, None)
        if why or device == "cpu" or asked is None or not torch.cuda.is_available():
            return why
        shape = (1, 2, 128, _up(head_dim, self.multiple))
        x = torch.empty(shape, dtype=dtype, device=device, requires_grad=True)
        try:
            facts = torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, True, False)
        except TypeError:  # before enable_gqa
            facts = torch.backends.cuda.SDPAParams(x, x, x, None, 0.0, True)
        return None if asked(facts, False) else f"torch.backends.cuda.{self.usable} says no"

    def _forward(self, *tensors):
        *qkv, scale, causal = tensors
        out, lse = self._call(*(x.transpose(1, 2) for x in qkv), scale, causal)
        return out.transpose(1, 2), lse

    def _backward(self, dout, q, k, v, out, lse, scale, causal):
        grads = self._call_backward(
            *(x.transpose(1, 2) for x in (dout, q, k, v, out)), lse, scale, causal
        )
        return [x.transpose(1, 2) for x in grads[:3]]


_VERSION = tuple(int(x) for x in torch.__version__.split(".")[:2])
# FlashAttention's state of random numbers, whose dtype PyTorch changed; without dropout nobody reads it.
_STATE = torch.uint64 if _VERSION >= (2, 6) else torch.int64


def _seed(q, dtype=torch.int64):
    return torch.empty(2, dtype=dtype, device=q.device)


class Cudnn(_Aten):
    name = "cudnn"
    what = "cuDNN's scaled dot product, through PyTorch"
    operator = "_scaled_dot_product_cudnn_attention"
    usable = "can_use_cudnn_attention"
    head_dim = 128
    capability = 90
    shares_keys = _VERSION >= (2, 8)

    def _call(self, q, k, v, scale, causal):
        return torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=scale
        )[:2]

    def _call_backward(self, dout, q, k, v, out, lse, scale, causal):
        return torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, out, lse.unsqueeze(-1), _seed(q)[:1], _seed(q)[:1], None, None, None,
            q.shape[2], k.shape[2], 0.0, causal, scale=scale,
        )  # fmt: skip


class Flash(_Aten):
    name = "flash"
    what = "FlashAttention-2 in PyTorch"
    operator = "_scaled_dot_product_flash_attention"
    usable = "can_use_flash_attention"

    def _call(self, q, k, v, scale, causal):
        return torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, 0.0, causal, False, scale=scale
        )[:2]

    def _call_backward(self, dout, q, k, v, out, lse, scale, causal):
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal,
            _seed(q, _STATE), _seed(q, _STATE)[0], scale=scale,
        )  # fmt: skip


class Efficient(_Aten):
    name = "efficient"
    what = "the memory-efficient kernel of PyTorch"
    operator = "_scaled_dot_product_efficient_attention"
    usable = "can_use_efficient_attention"
    dtypes = (*_HALF, torch.float32)
    capability = 50
    shares_keys = False
    rows = 32  # to which its log-sum-exp is padded

    def _call(self, q, k, v, scale, causal):
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal, scale=scale
        )[:2]

    def _call_backward(self, dout, q, k, v, out, lse, scale, causal):
        rows = _up(lse.shape[2], self.rows)
        lse = torch.nn.functional.pad(lse, (0, rows - lse.shape[2]), value=torch.inf)
        return torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            dout, q, k, v, None, out, lse, _seed(q)[0], _seed(q)[0], 0.0, [True, True, True, False],
            causal, scale=scale,
        )  # fmt: skip


class OnCpu(_Aten):
    name = "cpu"
    what = "PyTorch's flash attention for CPUs"
    operator = "_scaled_dot_product_flash_attention_for_cpu"
    device = "cpu"
    dtypes = (*_HALF, torch.float32)
    multiple = 1
    shares_keys = False

    def _call(self, q, k, v, scale, causal):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, scale=scale
        )

    def _call_backward(self, dout, q, k, v, out, lse, scale, causal):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, causal, scale=scale
        )


class _Package(Library):
    """The flash-attn packages: called by the names of their arguments, which differ from version to version."""

    module = ""

    @functools.lru_cache(maxsize=None)
    def _functions(self):
        module = importlib.import_module(self.module)
        return [(f, _names(f)) for f in (module._flash_attn_forward, module._flash_attn_backward)]

    def missing(self):
        try:
            self._functions()
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            return f"{self.module} cannot be used: {type(error).__name__}: {error}"
        return None

    def lacks(self, scores):
        versions = [names for _, names in self._functions()]
        for asked, name, what in ((scores.softcap, "softcap", "softcap"), (scores.slopes is not None, "alibi_slopes", "ALiBi")):
            if asked and not all(name in names for names in versions):
                return f"has no {what} in this version"
        return None

    def fits(self, piece):
        # Theirs is -slope * |row + keys - rows - column|, in steps of one. Of a causal square it may be off by as much for all keys of a
        # query, which `_common` makes good.
        if piece.place is None:
            return True
        even = _even(piece.place, piece.q.count, piece.k.count)
        if even is None:
            return False
        step, apart = even
        return apart >= 0 if piece.kind == CAUSAL else apart == step * (piece.k.count - piece.q.count)

    def _asked(self, scores, place, queries, keys):
        slopes = scores.slopes
        if slopes is not None:
            slopes = slopes[0] if slopes.shape[0] == 1 else slopes
            slopes = (slopes * _even(place, queries, keys)[0]).contiguous()
        return {"softcap": scores.softcap, "alibi_slopes": slopes}

    def forward(self, q, k, v, scale, causal, scores=PLAIN, place=None):
        out, lse = super().forward(q, k, v, scale, causal, scores, place)
        return out, lse - _common(scores, place, q, k) if causal and scores.slopes is not None else lse

    def backward(self, dout, q, k, v, out, lse, scale, causal, scores=PLAIN, place=None):
        if causal and scores.slopes is not None:
            lse = lse + _common(scores, place, q, k)
        return super().backward(dout, q, k, v, out, lse, scale, causal, scores, place)

    def _forward(self, q, k, v, scale, causal, **asked):
        function, names = self._functions()[0]
        results = function(**_arguments(names, {"q": q, "k": k, "v": v}, scale, causal, **asked))
        # 8 results: out, q, k, v, out of padded heads, lse, ...; 4: out, lse, ...
        return results[0], results[5] if len(results) == 8 else results[1]

    def _backward(self, dout, q, k, v, out, lse, scale, causal, **asked):
        function, names = self._functions()[1]
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        tensors = dict(zip(_OURS, (dout, q, k, v, out, lse, dq, dk, dv)))
        function(**_arguments(names, tensors, scale, causal, **asked))
        return dq, dk, dv


def _even(place, queries, keys):
    """(step of rows and keys, place of the first query less that of the first key); None where the two have other steps."""
    q_pos, q_step, k_pos, k_step, *_ = place
    if queries > 1 and keys > 1 and q_step != k_step:
        return None
    return (q_step if queries > 1 else k_step), q_pos - k_pos


def _common(scores, place, q, k):
    """By how much scores of a causal call with slope * column are larger than those with -slope * distance: (1 or batch, heads,
    rows)."""
    step, apart = _even(place, q.shape[1], k.shape[1])
    rows = torch.arange(q.shape[1], device=q.device, dtype=torch.float32)
    return scores.slopes[..., None] * (rows * step + apart)


class Flash2(_Package):
    name = "flash2"
    what = "the package flash-attn"
    module = "flash_attn.flash_attn_interface"


class Flash3(_Package):
    name = "flash3"
    what = "FlashAttention-3 (flash_attn_interface)"
    module = "flash_attn_interface"
    capability = 90


def _names(function):
    """Names of a function's arguments -> whether each has a default; of PyTorch's operators too."""
    function = getattr(function, "_init_fn", function)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default is not inspect.Parameter.empty for p in parameters}


# Arguments of any version that stand for nothing of ours.
_NEUTRAL = {
    "dropout_p": 0.0, "window_size": (-1, -1), "window_size_left": -1, "window_size_right": -1,
    "softcap": 0.0, "alibi_slopes": None, "return_softmax": False, "deterministic": False,
    "rng_state": None, "sm_margin": 0, "attention_chunk": 0, "num_splits": 1,
}  # fmt: skip


def _arguments(names, tensors, scale, causal, **asked):
    """What a version of the package wants to be told; arguments with defaults that we do not know keep them."""
    given = {**_NEUTRAL, **tensors, **asked, "softmax_scale": scale, "causal": causal, "is_causal": causal}
    wanted = {name: given[name] for name in names if name in given}
    if not ({"causal", "is_causal"} & wanted.keys() and set(tensors) <= wanted.keys()):
        raise RuntimeError(f"attention: this version of flash-attn has other arguments: {list(names)}")
    # Newer versions have arguments without defaults for packed sequences and the like: none.
    return {**{name: None for name, has in names.items() if not has}, **wanted}
