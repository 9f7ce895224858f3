"""How parameters are laid out in batches and cut in shares. No ranks, no memory."""

import random

from rueda.torch.sharding._layout import ALIGNED, batches, overlap


def test_batches_hold_every_parameter_once_in_the_order_of_backward():
    draw = random.Random(7)
    for _ in range(200):
        count = draw.randrange(1, 40)
        kinds = [draw.choice("ab") for _ in range(count)]
        sizes = [draw.choice([0, 1, 5, 64, 1000, 70000]) for _ in range(count)]
        ranks = draw.randrange(1, 9)
        found = batches(kinds, sizes, [4] * count, ranks, most_bytes=draw.choice([1, 4000, 300000]))
        places = [place for batch in found for place in batch.places]
        assert sorted(place.parameter for place in places) == list(range(count))
        last = [batch.places[-1].parameter for batch in found]
        assert last == sorted(last, reverse=True)
        for batch in found:
            assert len({kinds[place.parameter] for place in batch.places}) == 1
            end = 0
            for place in batch.places:
                assert place.offset == end
                end += sizes[place.parameter]
            assert batch.count == end and batch.share % ALIGNED == 0
            assert end <= batch.share * ranks < end + ranks * ALIGNED or end == 0


def test_shares_are_the_whole():
    for offset, count, share in ((0, 10, 4), (3, 10, 4), (5, 1, 64), (0, 129, 64), (7, 0, 4)):
        parts = [overlap(offset, count, begin, begin + share) for begin in range(0, 256, share)]
        covered = [n for part in parts if part for n in range(*part)]
        assert covered == list(range(count))
