"""BlockMask: which blocks of keys the blocks of queries see. Deterministic: equal on all ranks."""

import numpy as np


class BlockMask:
    """A mask over blocks of ``block`` x ``block`` positions of a sequence of ``length`` tokens.

    ``dense`` is (n, n) or (kv_heads, n, n) of bool with n = ceil(length / block).
    """

    def __init__(self, dense, length, block):
        self._check_sizes(length, block)
        dense = np.asarray(dense, bool)
        dense = dense[None] if dense.ndim == 2 else dense
        count = -(-length // block)
        if dense.ndim != 3 or dense.shape[1:] != (count, count):
            raise ValueError(
                f"a block mask of {length} tokens in blocks of {block} has {count} x {count} blocks, got "
                f"{' x '.join(map(str, dense.shape[1:]))}"
            )
        self.dense, self.length, self.block = dense, length, block
        self.heads = len(dense)
        self.bytes = np.ascontiguousarray(dense, np.uint8).tobytes()

    from_dense = classmethod(lambda cls, dense, length, block: cls(dense, length, block))

    @property
    def density(self):
        """Share of the blocks that are seen."""
        return float(self.dense.mean())

    @property
    def kv_num_blocks(self):
        """(heads, n): how many key blocks each query block sees, as FlexAttention has it."""
        return self.dense.sum(-1, dtype=np.int32)

    @property
    def kv_indices(self):
        """(heads, n, n): the seen key blocks first, ascending."""
        return np.argsort(~self.dense, axis=-1, kind="stable").astype(np.int32)

    @staticmethod
    def _check_sizes(length, block):
        if length < 1 or block < 1:
            raise ValueError(f"a block mask needs tokens and a block size, got {length} and {block}")

    @classmethod
    def _indices(cls, length, block):
        cls._check_sizes(length, block)
        index = np.arange(-(-length // block))
        return index[:, None], index[None, :]

    @classmethod
    def local_window(cls, length, block, window):
        """Blocks at most window / block / 2 apart."""
        i, j = cls._indices(length, block)
        return cls(abs(i - j) <= window // block // 2, length, block)

    @classmethod
    def dilated(cls, length, block, dilation_rates=(1, 2, 4)):
        """The own block, and those a rate before and after."""
        i, j = cls._indices(length, block)
        return cls(np.isin(abs(i - j), [0, *dilation_rates]), length, block)

    @classmethod
    def global_local(cls, length, block, global_tokens, window):
        """The first blocks see and are seen by all, and a window."""
        i, j = cls._indices(length, block)
        first = -(-global_tokens // block)
        near = abs(i - j) <= window // block // 2
        return cls(near | (i < first) | (j < first), length, block)

    @classmethod
    def strided(cls, length, block, stride):
        """Every stride-th block, and the neighbours."""
        i, j = cls._indices(length, block)
        return cls((j % stride == 0) | (abs(i - j) <= 1), length, block)

    @classmethod
    def random(cls, length, block, density, seed=0, heads=1):
        """A share ``density`` of the blocks, the diagonal included; the same on every rank."""
        cls._check_sizes(length, block)
        if not 0 <= density <= 1:
            raise ValueError(f"density is {density}, expected the share of blocks that is seen, 0 to 1")
        count = -(-length // block)
        random = np.random.Generator(np.random.PCG64(seed))
        dense = random.random((heads, count, count)) < density
        dense[:, np.arange(count), np.arange(count)] = True
        return cls(dense, length, block)

    @classmethod
    def hierarchical(cls, length, block, window, dilation_rates=(2, 4), global_tokens=0):
        """A window, dilated blocks and global ones together."""
        dense = cls.local_window(length, block, window).dense
        dense = dense | cls.dilated(length, block, dilation_rates).dense
        return cls(dense | cls.global_local(length, block, global_tokens, 0).dense, length, block)

    def with_density(self, density, seed=0):
        """Blocks added or taken away at random until a share ``density`` is seen; the same on all ranks.

        The diagonal stays.
        """
        if not 0 <= density <= 1:
            raise ValueError(f"density is {density}, expected the share of blocks that is seen, 0 to 1")
        count = self.dense.shape[-1]
        wanted = min(max(round(density * count * count), count), count * count)
        random = np.random.Generator(np.random.PCG64(seed))
        dense = self.dense | np.eye(count, dtype=bool)
        off_diagonal = ~np.eye(count, dtype=bool)
        for head in dense:
            excess = int(head.sum()) - wanted
            candidates = np.flatnonzero((head if excess > 0 else ~head) & off_diagonal)
            head.flat[random.permutation(candidates)[: abs(excess)]] = excess < 0
        return type(self)(dense, self.length, self.block)

    @classmethod
    def pattern(cls, name, length, block, *, density=None, seed=0, window=512, global_tokens=64,
                dilation_rates=(1, 2, 4, 8), stride=8):  # fmt: skip
        """A mask by the name of its pattern, optionally brought to a density.

        Parameters
        ----------
        name : {"local_window", "dilated_sparse", "global_local", "strided", "random", "hierarchical"}
        density : float, optional
            Share of the blocks that are seen; "random" needs it.
        window, global_tokens : int
            In tokens; dilation_rates and stride are in blocks.
        """
        if name == "random":
            if density is None:
                raise ValueError("a random block mask needs a density")
            return cls.random(length, block, density, seed)
        makers = {
            "local_window": lambda: cls.local_window(length, block, window),
            "dilated_sparse": lambda: cls.dilated(length, block, dilation_rates),
            "global_local": lambda: cls.global_local(length, block, global_tokens, window),
            "strided": lambda: cls.strided(length, block, stride),
            "hierarchical": lambda: cls.hierarchical(
                length, block, window, dilation_rates, global_tokens
            ),
        }
        if name not in makers:
            raise ValueError(
                f"block pattern is {name!r}, expected one of {', '.join(makers)}, random: a pattern that "
                "depends on the content would differ between ranks"
            )
        mask = makers[name]()
        return mask if density is None else mask.with_density(density, seed)
