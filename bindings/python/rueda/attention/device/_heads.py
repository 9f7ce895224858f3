"""Which heads of a rank's tensors a piece is about."""


class Heads:
    """KV heads of a piece as slices of tensors, with the query heads that use them."""

    def __init__(self, plan):
        self.plan, self.group = plan, plan.spec.heads // plan.spec.kv_heads

    def queries(self, head):
        """(begin, end) of the rank's query heads that use a KV head."""
        begin = max(head * self.group, self.plan.q_begin) - self.plan.q_begin
        end = min((head + 1) * self.group, self.plan.q_end) - self.plan.q_begin
        return begin, max(begin, end)

    def of(self, heads, first, first_query=0):
        """[(slice of KV heads, slice of query heads)]; the KV tensor's first head is ``first``, that of the queries' tensor
        ``first_query`` of the rank's."""
        begin, end, step = heads
        both = {h: self.queries(h) for h in range(begin, end, step)}
        every = [h for h, (low, high) in both.items() if high > low]
        if not every:
            return []
        counts = {both[h][1] - both[h][0] for h in every}
        low, high = both[every[0]][0] - first_query, both[every[-1]][1] - first_query
        keys = slice(every[0] - first, every[-1] - first + 1, step)
        if len(counts) == 1 and (step == 1 or len(every) == 1):
            return [(keys, slice(low, high))]
        if counts == {1} and self.group == 1:
            return [(keys, slice(low, high, step))]
        return [
            (slice(h - first, h - first + 1), slice(both[h][0] - first_query, both[h][1] - first_query))
            for h in every
        ]
