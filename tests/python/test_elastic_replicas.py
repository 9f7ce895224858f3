"""Replica groups of guarded training: a group of which a rank is lost is in no step, and the divisor is that of the others."""

import os
import pathlib
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import rueda.torch as hvd  # noqa: E402
from expect import raises  # noqa: E402
from rueda.elastic import _points, _replicas  # noqa: E402
from rueda.elastic._replicas import Replicas  # noqa: E402
from rueda.torch import _epochs  # noqa: E402
from worlds import launch, ranks  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("guard_script.py")


@pytest.fixture
def played(monkeypatch):
    """A job that is played: `become` says who is in it, and this is member 0."""
    runtime = types.SimpleNamespace(largest=lambda name, number: number)

    def become(*members):
        runtime.epoch = types.SimpleNamespace(members=list(members), member=0)
        runtime.place = types.SimpleNamespace(size=len(members))

    runtime.become = become
    monkeypatch.setattr(_replicas, "runtime", runtime)
    return runtime


def numbers(replicas):
    return replicas.complete, replicas.ranks, replicas.left_out, replicas.counts


def test_groups_go_by_member_and_count_when_they_are_whole(played):
    replicas = Replicas()
    replicas.use(2)
    played.become(0, 1, 2, 3)
    replicas.begin()
    assert numbers(replicas) == (2, 4, False, True) and replicas.contributors() == 2
    played.become(0, 2, 3)
    assert replicas.follow() and numbers(replicas) == (1, 2, True, False) and not replicas.would_gain()
    played.become(0, 2)
    assert not replicas.follow() and replicas.would_gain()
    replicas.begin()
    assert numbers(replicas) == (1, 2, False, True)


def test_ranks_that_are_left_of_several_groups_may_make_one_when_groups_are_formed_anew(played):
    replicas = Replicas()
    replicas.use(2)
    played.become(0, 1, 2, 3, 4, 5)
    replicas.begin()
    played.become(0, 3, 4, 5)
    assert replicas.follow() and numbers(replicas) == (1, 2, True, False) and replicas.would_gain()
    played.become(0, 3, 4, 5, 6)
    replicas.begin()
    assert numbers(replicas) == (2, 4, True, True)


def test_process_sets_count_while_they_have_all_their_ranks(played):
    sets = [hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])]
    replicas = Replicas()
    replicas.use(sets)
    played.become(0, 1, 2, 3)
    replicas.begin()
    assert numbers(replicas) == (2, 4, False, True)
    played.become(0, 1, 3)
    assert replicas.follow() and numbers(replicas) == (1, 2, True, False) and not replicas.would_gain()
    sets[0].ranks, sets[1].ranks = [0], [1, 2]  # as the epoch has them
    replicas.begin()
    assert numbers(replicas) == (1, 2, True, False)
    sets[1].ranks = []
    with pytest.raises(RuntimeError, match="no replica group has all of its 2 ranks"):
        replicas.begin()


def test_no_group_and_other_groups_elsewhere_are_errors_and_without_groups_ranks_are_counted(played):
    replicas = Replicas()
    played.become(0, 1, 2)
    replicas.begin()
    assert replicas.follow() and replicas.contributors() == 3 and not replicas.left_out
    replicas.use(4)
    assert replicas.follow() and replicas.contributors() == 3  # until a function begins
    with pytest.raises(RuntimeError, match=r"4 ranks \(3 ranks, replica=4\): give --min-np 4"):
        replicas.begin()
    played.largest = lambda name, number: max(number, 5)
    with pytest.raises(RuntimeError, match="different replica="):
        replicas.begin()


def test_what_is_no_group_is_refused():
    replicas = Replicas()
    for wanted in (0, -1, True, "2", 2.0, [], [1]):
        with pytest.raises(ValueError, match="number of ranks in a replica group"):
            replicas.use(wanted)
    for sets in ([[0, 1], [1, 2]], [[0], [1, 2]]):
        with pytest.raises(ValueError, match="no rank in common"):
            replicas.use([hvd.ProcessSet(each) for each in sets])


def test_a_state_is_not_guarded_first_while_it_trains(monkeypatch):
    monkeypatch.setattr(_epochs, "is_elastic", lambda: True)
    hvd.init()
    try:
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 0.1))
        state, other = hvd.elastic.TorchState(step=0), hvd.elastic.TorchState(step=0)
        monkeypatch.setattr(_points.points, "state", state)
        with pytest.raises(RuntimeError, match="before the training function, not first in it"):
            hvd.elastic.guard(optimizer, state)
        assert not state._is_guarded
        hvd.elastic.guard(optimizer, other)
        monkeypatch.setattr(_points.points, "state", other)
        assert hvd.elastic.guard(optimizer, other) is optimizer
    finally:
        hvd.shutdown()


@ranks(3)
def test_gradients_of_a_rank_that_does_not_count_are_in_no_average_dense_grouped_or_sparse():
    rank, patch = hvd.rank(), pytest.MonkeyPatch()
    patch.setattr(_epochs, "is_elastic", lambda: True)
    try:
        table = torch.nn.Embedding(4, 2, sparse=True)
        lone, first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
        parameters = [table.weight, lone, first, second]
        for op, expected in ((hvd.Average, 1.5), (hvd.Sum, 3.0)):
            plain = torch.optim.SGD(parameters, 0.0)
            optimizer = hvd.DistributedOptimizer(plain, op=op, groups=[[first, second]])
            state = hvd.elastic.TorchState(step=0)
            hvd.elastic.guard(optimizer, state, replica=2)
            replicas = state._replicas
            replicas._wanted, replicas.complete, replicas.ranks, replicas.left_out, replicas.counts = 2, 1, 2, True, rank < 2
            (table(torch.tensor([1])).sum() * (rank + 1) + (lone + first + second).sum() * (rank + 1)).backward()
            optimizer.synchronize()
            assert optimizer.contributors == 1
            for p in (lone, first, second):
                assert p.grad.tolist() == [expected] * 2, p.grad
            assert table.weight.grad.to_dense()[1].tolist() == [expected] * 2
            optimizer.zero_grad()
        for refused in (hvd.Max, hvd.Min):
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD([lone], 0.0), op=refused)
            with raises(ValueError, "op=Average and op=Sum"):
                hvd.elastic.guard(optimizer, hvd.elastic.TorchState(step=0), replica=2)
    finally:
        patch.undo()


def test_a_lost_rank_takes_its_group_out_of_the_batch_and_the_others_train_on(tmp_path):
    # Groups are 0 and 1, 2 and 3. Member 1 is lost, and 3; then no group is whole, and 0 and 2 form one.
    options = "--min-np", "2", "--on-failure", "shrink"
    command = [sys.executable, SCRIPT, tmp_path, 12, 2, 0, "1:backward:4", "3:hook:8"]
    code, output = launch(4, command, env={"GUARD_REPLICA": "2"}, options=options)
    said = {int(name): [line.split() for line in (tmp_path / name).read_text().splitlines()] for name in os.listdir(tmp_path)}
    assert code == 0, (output, said)
    story = {}
    for lines in said.values():
        for word, *rest in lines:
            if word == "did":
                assert story.setdefault(int(rest[0]), rest[1:]) == rest[1:], rest
    sums, contributions = [0] * 32, []
    for step in range(12):
        groups, told, _ = story[step]
        now = list(map(int, told.split(",")))
        added = {member: now[member] - sums[member] for member in range(32) if now[member] != sums[member]}
        assert set(added.values()) == {4 * (step + 1) // (2 * int(groups))}, (step, added)  # the ranks of the groups
        contributions.append(sorted(added))
        sums = now
    assert contributions == [[0, 1, 2, 3]] * 4 + [[2, 3]] * 4 + [[0, 2]] * 4
    assert [line[0] for line in said[0]].count("train") == [line[0] for line in said[2]].count("train") == 2
