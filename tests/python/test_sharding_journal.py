"""A step of one copy of the values for all ranks, in which ranks die: its rules in every order, and real ranks killed."""

import os
import signal

import pytest
import rueda.torch as hvd
import torch
from rueda.torch.sharding import _journal
from rueda.torch.sharding._journal import DONE, UNDONE, proposal, undone
from worlds import run_ranks

OLD, TORN, NEW = "old", "torn", "new"
ALL = 1 << 32 | _journal._ALL


class Rank:
    """What one rank does next, as `Journal` does it: a place in its program."""

    def __init__(self, batches):
        self.program = ["begin", "arrive", "wait"]
        for n in range(batches):
            self.program += [("scratch", n), ("say scratch", n), ("tear", n), ("update", n), ("keep", n), ("say kept", n)]
        self.program += ["say all", "arrive", "wait"]
        self.end = len(self.program)


# A state: (word, ranks, values, kept, scratch, progress, left), of each rank (where, doing, alive); doing: None in the
# program, then "give up", "decide", "put back", "leave", "others", or how it ended.
def start(ranks, batches):
    each = tuple([OLD] * batches for _ in range(ranks))
    return (
        0,
        tuple((0, None, True) for _ in range(ranks)),
        tuple(map(tuple, each)),
        tuple((None,) * batches for _ in range(ranks)),
        (None,) * ranks,
        (0,) * ranks,
        (False,) * ranks,
    )


def put(items, index, item):
    return (*items[:index], item, *items[index + 1 :])


def restored(values, kept, scratch, progress, member, mutant):
    """The values after `Journal._undo`."""
    count, has_scratch = undone(1, progress[member])
    own = values[member]
    count = len(own) if count is None else count
    for n in range(count):
        own = put(own, n, kept[member][n])
    if has_scratch and mutant != "no scratch":
        own = put(own, count, scratch[member])
    return put(values, member, own)


def following(state, program, deaths, mutant):
    """All states that can come next."""
    word, ranks, values, kept, scratch, progress, left = state
    dead = sum(not alive for _, _, alive in ranks)
    for r, (where, doing, alive) in enumerate(ranks):
        if not alive or doing in (OLD, NEW):
            continue

        def then(where, doing, r=r, word=word, values=values, kept=kept, scratch=scratch, progress=progress, left=left):
            return word, put(ranks, r, (where, doing, True)), values, kept, scratch, progress, left

        if dead < deaths:
            yield word, put(ranks, r, (where, doing, False)), values, kept, scratch, progress, left
        if doing is None:
            step = program.program[where]
            if step == "begin":
                yield then(where + 1, None, progress=put(progress, r, 1 << 32))
            elif step == "say all":
                yield then(where + 1, None, progress=put(progress, r, ALL))
            elif step == "arrive":
                yield then(where + 1, None)
            elif step == "wait":
                if all(other >= where for other, _, _ in ranks):
                    yield then(where, "end") if where == program.end - 1 else then(where + 1, None)
                if dead:
                    yield then(where, "give up")
            else:
                what, n = step
                if what == "scratch":
                    yield then(where + 1, None, scratch=put(scratch, r, values[r][n]))
                elif what == "say scratch":
                    yield then(where + 1, None, progress=put(progress, r, 1 << 32 | n << 1 | 1))
                elif what in ("tear", "update"):
                    changed = put(values[r], n, TORN if what == "tear" else NEW)
                    yield then(where + 1, None, values=put(values, r, changed))
                elif what == "keep":
                    yield then(where + 1, None, kept=put(kept, r, put(kept[r], n, scratch[r])))
                else:
                    yield then(where + 1, None, progress=put(progress, r, 1 << 32 | (n + 1) << 1))
        elif doing in ("end", "give up"):
            wanted = DONE if doing == "end" else proposal(1, progress)
            decided = word or wanted
            if mutant == "no decision" and doing == "end":
                decided = DONE
            yield then(where, NEW if decided == DONE else ("tear own", doing), word=decided)
        elif doing[0] == "tear own":
            count, has_scratch = undone(1, progress[r])
            count = len(values[r]) if count is None else count + has_scratch
            torn = tuple(TORN if n < count else value for n, value in enumerate(values[r]))
            yield then(where, ("restore own", doing[1]), values=put(values, r, torn))
        elif doing[0] == "restore own":
            own = restored(values, kept, scratch, progress, r, mutant)
            yield then(where, ("leave", doing[1]), values=own)
        elif doing[0] == "leave":
            others = frozenset(range(len(ranks))) - {r}
            if mutant == "end waits for nobody" and doing[1] == "end":
                others = frozenset()
            yield then(where, ("others", others) if others else OLD, left=put(left, r, True))
        else:
            for member in doing[1]:
                rest = doing[1] - {member}
                after = ("others", rest) if rest else OLD
                if left[member]:
                    yield then(where, after)
                elif not ranks[member][2]:
                    undo = restored(values, kept, scratch, progress, member, mutant)
                    yield then(where, after, values=values if mutant == "only own" else undo)


def explore(ranks, batches, deaths, mutant=None):
    """Every reachable state; what is wrong with one, or None."""
    program = Rank(batches)
    first = start(ranks, batches)
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        nothing_follows = True
        for after in following(state, program, deaths, mutant):
            if after[1] != state[1] or after != state:
                nothing_follows = nothing_follows and after[1] != state[1] and _only_a_death(state, after)
            if after not in seen:
                seen.add(after)
                todo.append(after)
        ends = {doing for _, doing, alive in state[1] if alive}
        if ends <= {OLD, NEW} and ends:
            if len(ends) > 1:
                return "survivors differ", state
            (end,) = ends
            if any(value != end for own in state[2] for value in own):
                return f"the step is {end} and values are not", state
        elif ends and nothing_follows:
            return "a rank waits for ever", state
    return None


def _only_a_death(before, after):
    return sum(alive for *_, alive in before[1]) != sum(alive for *_, alive in after[1])


@pytest.mark.parametrize("ranks, batches, deaths", [(2, 2, 2), (3, 1, 2)])
def test_in_every_order_the_step_is_whole(ranks, batches, deaths):
    assert explore(ranks, batches, deaths) is None


@pytest.mark.parametrize(
    "mutant, ranks", [("no scratch", 2), ("only own", 2), ("no decision", 3), ("end waits for nobody", 3)]
)
def test_a_rule_less_is_found(mutant, ranks):
    assert explore(ranks, 1, 2, mutant) is not None


# ---- real ranks ----

SIZE, STEP = 3, 2


def build(**options):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.Tanh(), torch.nn.Linear(300, 100))
    groups = [{"params": list(layer.parameters())} for layer in (model[0], model[2])]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    return model, hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def train(model, optimizer, step):
    x = torch.randn(4, 200, generator=torch.Generator().manual_seed(10 * step + hvd.rank()))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _killed(stage, when):
    hvd.init()
    rank = hvd.rank()
    plain, whole = build()
    model, optimizer = build(shard=stage, share="host")
    for step in range(STEP):
        train(plain, whole, step)
        train(model, optimizer, step)
    before = flat(plain)
    train(plain, whole, STEP)
    after = flat(plain)
    assert torch.equal(flat(model), before) and not torch.equal(before, after)
    hvd.barrier()
    if rank == 1:
        method, number, late = when
        work, calls = getattr(optimizer._journal, method), []

        def dies(*arguments):
            calls.append(1)
            if len(calls) > number and not late:
                os.kill(os.getpid(), signal.SIGKILL)
            work(*arguments)
            if len(calls) > number:
                with torch.no_grad():
                    if method == "before_next":  # in the middle of the update
                        optimizer._journal._batches[number][0].shard.fill_(9.0)
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(optimizer._journal, method, dies)
    try:
        train(model, optimizer, STEP)
    except hvd.HorovodInternalError as error:
        assert error.rank == 1, error
        now = flat(model)
        return {"rank": rank, "old": torch.equal(now, before), "new": torch.equal(now, after)}
    raise AssertionError("the step ended")


def first_batch():
    return _killed("gradients", ("before_next", 0, True))


def between_batches():
    return _killed("gradients", ("after_next", 0, True))


def second_batch():
    return _killed("state", ("before_next", 1, True))


def before_it_says_all():
    return _killed("state", ("all_updated", 0, False))


def behind_the_last():
    return _killed("gradients", ("all_updated", 0, True))


@pytest.mark.parametrize(
    "function", [first_batch, between_batches, second_batch, before_it_says_all, behind_the_last], ids=lambda f: f.__name__
)
def test_survivors_have_the_parameters_of_before_or_after_the_step(function):
    outcome = run_ranks(SIZE, function, manual=True)
    assert outcome.code == 128 + signal.SIGKILL, outcome.output
    ends = []
    for rank in (0, 2):
        (report,) = outcome.reports[rank].values()
        assert "result" in report, report
        ends.append((report["result"]["old"], report["result"]["new"]))
    assert ends[0] == ends[1] and any(ends[0]), ends
    if function is not behind_the_last:
        assert ends[0] == (True, False), ends
