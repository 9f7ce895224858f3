"""What goes wrong in groups of backend rueda is said on every rank, and the group works on where it can."""

import re
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from c10d_cases import default_group, same
from rueda.torch.distributed import CollectiveError, CollectiveTimeout, LostRankError
from worlds import kill_once_all_are_here, ranks, results, run_ranks

WORLD = "torch"


def works(group):
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((2,), float(group.size())))


def disagree(group, call, *texts):
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    assert isinstance(caught.value, CollectiveError)
    message = str(caught.value)
    assert re.search(r"ranks? [0, ]*0", message) and re.search(r"rank 1", message), message
    for text in texts:
        assert text in message, message
    works(group)


@ranks(2, 3)
def test_ranks_that_disagree_are_named():
    with default_group() as group:
        me, size = dist.get_rank(), dist.get_world_size()
        odd = me == 1
        count = 5 if odd else 4
        disagree(group, lambda: dist.all_reduce(torch.ones(count)), "[5]", "[4]")
        dtype = torch.float64 if odd else torch.float32
        disagree(group, lambda: dist.all_reduce(torch.ones(4, dtype=dtype)), "float64", "float32")
        op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
        disagree(group, lambda: dist.all_reduce(torch.ones(4), op))
        disagree(group, lambda: dist.broadcast(torch.ones(4), src=1 if odd else 0))
        kind = dist.barrier if odd else lambda: dist.all_reduce(torch.ones(4))
        disagree(group, kind)
        disagree(group, lambda: dist.broadcast(torch.ones(count), src=0), "[5]", "[4]")
        outputs = [torch.zeros(count) for _ in range(size)]
        disagree(group, lambda: dist.all_gather(outputs, torch.ones(count)))
        sent = [3 if odd else 2] * size
        rows = torch.ones(sum(sent))
        disagree(group, lambda: dist.all_to_all_single(rows.clone(), rows, sent, sent))
        pieces = [torch.ones(count)] * size
        disagree(group, lambda: dist.reduce_scatter(torch.zeros(count), pieces))


@ranks(2)
def test_what_is_wrong_on_one_rank_is_a_value_error():
    with default_group() as group:
        for call in (
            lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.ones(2)),
            lambda: dist.reduce_scatter_tensor(torch.zeros(3), torch.ones(4)),
            lambda: dist.all_gather([torch.zeros(2)], torch.ones(2)),
            lambda: dist.all_to_all_single(torch.zeros(3), torch.ones(3)),
            lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e5m2)),
            lambda: group.allreduce([torch.ones(2, dtype=torch.complex64)], op=dist.ReduceOp.MAX),
            lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
            lambda: dist.broadcast(torch.ones(2), group_src=7),
            lambda: dist.isend(torch.ones(2), group_dst=1, tag=-1),
        ):
            with pytest.raises(ValueError):
                if dist.get_rank() == 0:
                    call()
                else:
                    raise ValueError
        with pytest.raises(ValueError, match="it reduces .*float32"):
            dist.all_reduce(torch.ones(2).to(torch.float8_e5m2))
        works(group)


@ranks(2)
def test_late_ranks_are_named():
    with default_group():
        # Members that wait tell each other how far they are after a second.
        group = dist.new_group(timeout=timedelta(seconds=2.5))
        if dist.get_rank() == 0:
            with pytest.raises(CollectiveTimeout, match="rank 1"):
                dist.all_reduce(torch.ones(2), group=group)
        dist.barrier()
        with pytest.raises(dist.DistBackendError, match="timed out on rank 0"):
            dist.all_reduce(torch.ones(2), group=group)
        dist.monitored_barrier(timeout=timedelta(seconds=30))
        group = dist.new_group()
        if dist.get_rank() == 0:
            with pytest.raises(CollectiveTimeout, match="rank 1"):
                dist.monitored_barrier(group, timedelta(seconds=0.2), wait_all_ranks=True)
        works(dist.group.WORLD)


@ranks(2, 3)
def test_an_aborted_group_ends_on_all_members():
    with default_group() as everybody:
        group = dist.new_group()
        works(group)
        dist.barrier()  # nobody is in it any more when it is aborted
        if dist.get_rank() == 0:
            group.abort()
        else:
            with pytest.raises(dist.DistBackendError, match="abort"):
                dist.all_reduce(torch.ones(2), group=group)
        works(everybody)


@ranks(4)
def test_groups_are_made_by_their_members():
    with default_group() as everybody:
        me = dist.get_rank()
        mine = [[0, 1], [2, 3]][me // 2]
        for _ in range(2):  # the same ranks any number of times
            works(dist.new_group(mine, use_local_synchronization=True))
        made = [
            dist.new_group([a, b]) for a in range(4) for b in range(a + 1, 4) for _ in range(11)
        ]
        own = [
            g
            for g in made
            if isinstance(g, dist.ProcessGroup)
            and g.rank() >= 0
            and me in dist.get_process_group_ranks(g)
        ]
        assert len(own) == 33
        for group in own:
            works(group)
        for group in own:
            dist.destroy_process_group(group)
        works(everybody)


@ranks(2)
def test_init_and_destroy_again_and_again():
    for _ in range(100):
        with default_group() as group:
            works(group)


@ranks(2)
def test_hvd_goes_on_without_the_group():
    import rueda.torch as hvd
    from rueda.torch.distributed import process_group, process_set

    with default_group() as group:
        works(group)
        assert process_set(group) is hvd.global_process_set
        works(process_group(hvd.global_process_set))
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="after").tolist() == [2.0, 2.0]


def call_after_a_death():
    dist.init_process_group("rueda")
    dist.barrier()
    kill_once_all_are_here(1)
    with pytest.raises(dist.DistBackendError) as caught:
        while True:
            dist.all_reduce(torch.ones(1000))
    assert isinstance(caught.value, LostRankError)
    return caught.value.rank


def test_a_killed_rank_is_named():
    outcome = run_ranks(3, call_after_a_death)
    for rank in (0, 2):
        assert outcome.reports[rank]["call_after_a_death"]["result"] == 1, outcome.output


def swapped_calls():
    dist.init_process_group("rueda")
    first, second = torch.ones(2), torch.ones(2)
    with pytest.raises(CollectiveError, match="rank 0 is in .* rank 1 in "):
        if dist.get_rank() == 0:
            dist.all_reduce(first)
        else:
            dist.all_reduce(second)
    return True


def test_swapped_calls_are_found():
    assert all(results(run_ranks(2, swapped_calls, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})))
