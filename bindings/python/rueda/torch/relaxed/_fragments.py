"""Parts of a model whose outer steps come at different times (Streaming DiLoCo). Pure."""


def cut(counts, pieces):
    """The numbers of parameters of each fragment: neighbours, about as many elements everywhere, and no empty one.

    ``counts``: elements of each parameter.
    """
    total, before, fragments = max(1, sum(counts)), 0, {}
    for number, count in enumerate(counts):
        piece = (2 * before + count) * pieces // (2 * total)  # where its middle lies
        fragments.setdefault(min(piece, pieces - 1), []).append(number)
        before += count
    return list(fragments.values())


def is_due(number, fragment, fragments, every):
    """Whether a fragment begins its outer step after local step ``number``; they are spread over ``every`` steps."""
    return (number + fragment * every // fragments) % every == 0
