"""What is compared: the rows, the cases of each, who takes part, and the targets. All data, so that a reader can check it."""

from typing import Dict, List, NamedTuple, Tuple

MPIS = ("openmpi", "mpich")
ALL_MPIS = MPIS + ("openmpi-persistent", "mpich-persistent")  # blocking calls, and persistent requests
SMALL, MIDDLE = ("4", "32", "256", "1K"), ("64K", "256K", "1M", "4M", "16M")
LIMIT, IN_TURNS = "limit", "gloo in turns"  # the row's own program measures these too, in cases of their own
HOROVODS = ("horovod-gloo", "horovod-gloo-0.1ms", "horovod-mpi")


class Target(NamedTuple):
    """Median of peer time / rueda time. `peers`: the best of them counts."""
    near: float
    far: float
    peers: Tuple[str, ...]
    cases: Tuple[str, ...] = ()  # endings of the cases it is for; empty: all
    at_most: bool = False        # a figure of rueda's own that must not be above (no ratio)


class Row(NamedTuple):
    title: str
    ranks: Tuple[int, ...]
    subject: str                      # program that runs rueda
    peers: Tuple[str, ...]
    cases: Tuple[str, ...]            # rueda's
    targets: Tuple[Target, ...] = ()
    peer_cases: Dict[str, str] = {}   # rueda's case -> what the peers run instead
    fallback: Dict[str, str] = {}     # peers' case -> what counts where a peer has no such dtype
    needs_persistent: bool = False


def _cases(op: str, memory: str, sizes, dtype: str = "f32") -> Tuple[str, ...]:
    return tuple(f"{op}:{dtype}:{memory}:{size}" for size in sizes)


def _ends(sizes) -> Tuple[str, ...]:
    return tuple(":private:" + size for size in sizes)


_IN_PLACE = _cases("allreduce", "arena", MIDDLE + ("64M",))
_OTHERS = ("allgather", "reducescatter", "broadcast", "alltoall")
_OTHER_SIZES = ("64K", "256K", "1M", "4M", "16M", "64M")
_OTHER_CASES = tuple(c for op in _OTHERS for memory in ("private", "arena") for c in _cases(op, memory, _OTHER_SIZES))
_PRIVATE, _ARENA = (tuple(f":{memory}:{size}" for size in _OTHER_SIZES) for memory in ("private", "arena"))
_HALF = tuple(f"allreduce_:{dtype}:private:16M" for dtype in ("f16", "bf16"))
_IDLE = ("idle:compute", "idle:switches")
_REDUCING, _MOVING = ("all_reduce", "broadcast", "reduce_scatter"), ("all_gather", "all_to_all", "barrier")
_SMALL_REDUCING = tuple(f"{op}:{manner}:{size}" for op in _REDUCING for manner in ("blocking", "async") for size in ("8", "4K"))
_SMALL_MOVING = tuple(f"{op}:{manner}:8" for op in _MOVING for manner in ("blocking", "async"))
_LARGE = {"all_reduce:blocking:64K": 6, "all_reduce:blocking:1M": 5, "all_reduce:blocking:16M": 4, "all_gather:blocking:16M": 5,
          "reduce_scatter:blocking:16M": 6}
_C10D = _SMALL_REDUCING + _SMALL_MOVING + tuple(_LARGE)
_STEPS = {"ddp:resnet50:copied": 1.7, "ddp:resnet50:views": 2.5, "exposed:resnet50:views": 4, "exposed:resnet50-50:views": 4,
          "exposed:network:views": 4, "ddp:small:copied": 1.8, "fsdp2:small:plain": 1.7, "fsdp2:25M:plain": 1.7,
          "fsdp2:25M:shared": 2}
_ONCE = ("groups:64", "import:torch")
_MODELS = tuple(f"gradients:resnet50:{ms}ms" for ms in (0, 50, 200)) + ("gradients:network",)

ROWS: Dict[str, Row] = {
    "A": Row("allreduce of 4 B to 1 KB, persistent, C++", (2,), "rueda", ALL_MPIS + ("gloo",),
             _cases("allreduce", "private", SMALL),
             (Target(1.3, 0.8, ALL_MPIS), Target(20, 20, ("gloo",))), needs_persistent=True),
    "B": Row("blocking hvd.allreduce of a 4 B torch tensor", (2,), "rueda-torch", ("torch-gloo",) + HOROVODS,
             ("allreduce:f32:private:4",), (Target(10, 10, ("torch-gloo",)), Target(100, 100, ("horovod-gloo",)))),
    "C": Row("allreduce of 4 B, 4 ranks on 2 cores, C++", (4,), "rueda", ("openmpi",),
             ("allreduce:f32:private:4",), (Target(2, 2, ("openmpi",)),), needs_persistent=True),
    "D": Row("allreduce of private f32 buffers", (2,), "rueda", MPIS + ("gloo", "torch-gloo"),
             _cases("allreduce", "private", MIDDLE), (Target(1.5, 1.0, MPIS + ("gloo", "torch-gloo")),)),
    "E": Row("allreduce of large private f32 buffers", (2, 4), "rueda", MPIS + ("gloo", "torch-gloo"),
             _cases("allreduce", "private", ("64M", "256M")),
             (Target(4, 2, MPIS), Target(1.5, 1.5, ("gloo", "torch-gloo")))),
    "F": Row("allreduce in place (rueda_alloc), peers with private buffers", (2,), "rueda",
             MPIS + ("gloo", "torch-gloo"), _IN_PLACE,
             (Target(5, 5, MPIS), Target(3, 3, ("gloo", "torch-gloo"))),
             peer_cases={c: c.replace(":arena:", ":private:") for c in _IN_PLACE}),
    "G": Row("allreduce of 64 MB in place: share of the memory's own speed", (2,), "rueda", (LIMIT,),
             ("allreduce:f32:arena:64M",), (Target(0.75, 0.75, (LIMIT,)),),
             peer_cases={"allreduce:f32:arena:64M": "limit:f32:private:64M"}),
    "H": Row("allreduce of 16 MB of 16-bit floats, torch tensors", (2,), "rueda-torch", ("torch-gloo",), _HALF,
             (Target(10, 10, ("torch-gloo",)),), fallback={_HALF[1]: "allreduce_:f32:private:32M"}),
    "I": Row("other collectives, persistent, into the caller's memory", (2,), "rueda", ALL_MPIS + ("gloo",), _OTHER_CASES,
             (Target(1.3, 1.3, ALL_MPIS + ("gloo",), _PRIVATE), Target(3, 3, ALL_MPIS + ("gloo",), _ARENA)),
             needs_persistent=True, peer_cases={c: c.replace(":arena:", ":private:") for c in _OTHER_CASES}),
    "J": Row("ResNet-50's 161 gradients through DistributedOptimizer: exposed time", (2,), "rueda-gradients",
             ("ddp-gloo", "horovod-gloo-gradients", "horovod-mpi-gradients"), _MODELS,
             (Target(6, 6, ("ddp-gloo",)), Target(10, 10, ("horovod-gloo-gradients",)),
              Target(6, 6, ("horovod-mpi-gradients",)))),
    "K": Row("a process that computes while rueda is idle", (2,), "rueda-idle", ("horovod-idle",), _IDLE,
             (Target(1.01, 1.01, (), (":compute",), at_most=True), Target(0, 0, (), (":switches",), at_most=True))),
    "L": Row("torch.distributed on rueda and on Gloo, operations, in the same processes", (2,), "c10d", (IN_TURNS,), _C10D,
             (Target(10, 10, (IN_TURNS,), _SMALL_REDUCING), Target(12, 12, (), _SMALL_REDUCING, at_most=True),
              Target(8, 8, (IN_TURNS,), _SMALL_MOVING),
              *(Target(least, least, (IN_TURNS,), (case,)) for case, least in _LARGE.items())),
             peer_cases={case: "gloo/" + case for case in _C10D}),
    "M": Row("torch.distributed on rueda and on Gloo, training steps, in the same processes", (2,), "c10d", (IN_TURNS,), tuple(_STEPS),
             tuple(Target(least, least, (IN_TURNS,), (case,)) for case, least in _STEPS.items()),
             peer_cases={case: "gloo/" + case for case in _STEPS}),
    "N": Row("torch.distributed: 64 groups of 2 of 4 ranks created, in us; what `import torch` takes longer, in ms", (4,), "c10d",
             (IN_TURNS,), _ONCE,
             (Target(50000, 50000, (), ("groups:64",), at_most=True), Target(5, 5, (), ("import:torch",), at_most=True)),
             peer_cases={case: "gloo/" + case for case in _ONCE}),
}
_SHARDED = {"sgd:plain:exposed": ("sgd:ddp:exposed", 6), "adam:plain:exposed": ("adam:ddp:exposed", 6),
            "adam:state:step": ("adam:alone:step", 1), "adam:gradients:step": ("adam:alone:step", 1),
            "adam:host:step": ("adam:alone:step", 1), "adam:state:step@zero": ("adam:zero:step", 2),
            "adam:gradients:step@fsdp2": ("adam:fsdp2:step", 2), "adam:host:step@fsdp2": ("adam:fsdp2:step", 2),
            "adam:parameters:step": ("adam:fsdp2:step", 2)}
ROWS["O"] = Row("a transformer of 26 M parameters, sharded and not, in the same processes; the peer is the second way", (2,), "sharded",
                (IN_TURNS,), tuple(_SHARDED),
                tuple(Target(least, least, (IN_TURNS,), (case,)) for case, (_, least) in _SHARDED.items()),
                peer_cases={case: peer for case, (peer, _) in _SHARDED.items()})


def has_cores(program: str, ranks: int) -> bool:
    """MPICH never yields: with more ranks than cores a figure would be one of the scheduler."""
    return not (program.startswith("mpich") and ranks > 2)


def programs_of(letters: List[str]) -> Dict[Tuple[str, int], List[str]]:
    """(program, ranks) -> cases, each once, in the rows' order."""
    wanted: Dict[Tuple[str, int], List[str]] = {}

    def want(program: str, ranks: int, case: str) -> None:
        cases = wanted.setdefault((program, ranks), [])
        if case not in cases:
            cases.append(case)

    for letter in letters:
        row = ROWS[letter]
        for ranks in row.ranks:
            for case in row.cases:
                want(row.subject, ranks, case)
                for peer in row.peers:
                    program = row.subject if peer in (LIMIT, IN_TURNS) else peer
                    want(program, ranks, row.peer_cases.get(case, case))
                    if case in row.fallback:
                        want(program, ranks, row.fallback[case])
    return {(program, ranks): cases for (program, ranks), cases in wanted.items()
            if has_cores(program, ranks)}
