"""Elastic jobs that lose every rank, and go on from the newest whole checkpoint, with any number of ranks."""

import pytest
from test_elastic_jobs import check, sizes, start


def killed(folder, ranks, *faults, options=()):
    """A job whose ranks have all been killed: what was acknowledged."""
    code, _, said = start(folder / "reports", ranks, 1000, 1, *faults, options=options, checkpoint=folder / "kept")
    assert code == 137, (code, said)
    return {int(step): rest for lines in said.values() for word, step, *rest in lines if word == "did"}


@pytest.mark.parametrize(
    "ranks, faults, then",
    [(3, ["0:backward:4", "1+2:done:9"], 1), pytest.param(2, ["0+1:done:6"], 3, marks=pytest.mark.slow)],
)
def test_a_job_that_lost_every_rank_goes_on_when_it_is_started_again(tmp_path, ranks, faults, then):
    options = "--min-np", "1", "--on-failure", "shrink"
    before = killed(tmp_path, ranks, *faults, options=options)
    code, output, said = start(tmp_path / "again", then, 20, then, options=options, checkpoint=tmp_path / "kept")
    assert code == 0, (output, said)
    first = [line for line in said[0] if line[0] == "did"][0]
    resumed = int(first[1])  # the last step that is in the checkpoint
    assert before[resumed] == first[2:]
    story = check(said, 20, {step: rest for step, rest in before.items() if step <= resumed})
    assert sizes(said, 0) == [then] and {int(size) for step, (size, *_) in story.items() if step > resumed} == {then}


@pytest.mark.slow
def test_who_comes_after_the_loss_of_all_goes_on_from_a_checkpoint(tmp_path):
    # One job: both are replaced, and nobody is left to ask.
    faults, options = ["0+1:done:9"], ("--min-np", "2")
    code, output, said = start(tmp_path / "reports", 2, 20, 2, *faults, options=options, checkpoint=tmp_path / "kept")
    assert code == 0, (output, said)
    check(said, 20)
    assert "no rank is left that trained: the job goes on from commit" in output
    assert sorted(said) == [0, 1, 2, 3] and said[2][-1][0] == said[3][-1][0] == "end"
