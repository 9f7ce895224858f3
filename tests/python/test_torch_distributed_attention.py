"""Attention takes groups of torch.distributed where it takes process sets, and each is made from the other."""

import os

import rueda.attention as attention
import rueda.torch as hvd
import rueda.torch.distributed as rueda_groups
import torch
import torch.distributed as dist
from worlds import run_ranks


def attention_of(group, process_set):
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 12, 2, 8, generator=generator) for _ in range(3))
    outs = []
    for which in (group, process_set):
        shards = [attention.shard_sequence(x, layout="zigzag", process_set=which) for x in (q, k, v)]
        out = attention.ring_attention(*shards, causal=True, layout="zigzag", process_set=which)
        outs.append(attention.unshard_sequence(out, layout="zigzag", process_set=which))
    expected = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)
    for out in outs:
        torch.testing.assert_close(out, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


def attention_takes_groups():
    dist.init_process_group("rueda")
    hvd.init()
    attention_of(dist.group.WORLD, hvd.global_process_set)
    attention_of(None, hvd.global_process_set)
    turned = dist.new_group([2, 1], sort_ranks=False)
    pair = dist.new_group([1, 2])
    if dist.get_rank() != 0:
        x = torch.randn(1, 4, 2, 8)
        for group, words in ((turned, "not ascending"), (pair, "process_set([1, 2])")):
            try:
                attention.ring_attention(x, x, x, process_set=group)
                raise AssertionError("it took a group without a process set")
            except ValueError as error:
                assert words in str(error), error
    known = rueda_groups.process_set([1, 2])
    if dist.get_rank() != 0:
        attention_of(pair, known)
        again = rueda_groups.process_group(known)
        assert dist.get_process_group_ranks(again) == [1, 2]
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=again)
        assert tensor.tolist() == [2, 2]
    hvd.barrier()
    dist.destroy_process_group()
    hvd.shutdown()
    return {"rank": int(os.environ["RUEDA_RANK"])}


def test_attention_takes_groups_and_process_sets():
    outcome = run_ranks(3, attention_takes_groups, manual=True)
    assert outcome.code == 0, (outcome.output, outcome.reports)
    assert all("error" not in line for report in outcome.reports for line in report.values()), outcome.reports
