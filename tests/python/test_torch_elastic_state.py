"""What `rueda.torch.elastic` keeps of models, optimizers and samplers: one process, ranks played where they matter."""

import contextlib
import copy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import rueda.torch as hvd  # noqa: E402
from rueda import _runtime  # noqa: E402
from rueda.torch import _large_pages  # noqa: E402
from rueda.torch.elastic import ElasticSampler, TorchState, _copies  # noqa: E402
from rueda.torch.elastic import sampler as sampler_module  # noqa: E402
from rueda.torch.elastic.state import StateHandler, get_handler_registry, set_handler_registry  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def job():
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    monkeypatch.setattr(type(_runtime.runtime), "epoch", None, raising=False)


@pytest.fixture
def ranks(monkeypatch):
    """Sets size and rank that samplers see."""

    def play(size, rank):
        monkeypatch.setattr(sampler_module.mpi_ops, "size", lambda: size)
        monkeypatch.setattr(sampler_module.mpi_ops, "rank", lambda: rank)

    return play


def made(kind=torch.optim.Adam, **more):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    return TorchState(model, kind(model.parameters(), lr=0.1), batch=0, **more)


def train(state, steps=1):
    for _ in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.randn(8, 4)).square().mean().backward()
        state.optimizer.step()
        state.batch += 1


def contents(state):
    return copy.deepcopy((state.model.state_dict(), state.optimizer.state_dict(), state.batch))


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("commits", [0, 1, 3, 6])
@pytest.mark.parametrize("unsaved", [0, 2])
def test_what_was_committed_comes_back_whatever_the_way_it_was_copied(kind, commits, unsaved):
    state = made(kind)
    for _ in range(commits):
        train(state)
        state.commit()
    kept = contents(state)
    train(state, unsaved)
    parameters = list(state.model.parameters())
    state.restore()
    assert same(contents(state), kept) and state._commits == commits
    assert all(map(lambda a, b: a is b, parameters, state.model.parameters()))
    train(state)  # nothing that trains is the copy
    state.restore()
    assert same(contents(state), kept)


def late(state):
    """How many tensors the last save left to the thread."""
    return sum(len(copies._late) for copies in state._copies())


def test_what_only_steps_change_is_copied_late_after_a_time_and_buffers_never():
    state = made()
    seen = []
    for _ in range(6):
        train(state)
        state.commit()
        seen.append(late(state))
    parameters = len(list(state.model.parameters()))
    assert seen[:3] == [0, 0, 0] and seen[-1] == parameters + 3 * parameters


def test_what_is_copied_late_leaves_the_processors_to_the_vote(monkeypatch):
    begun = []
    monkeypatch.setattr(_copies._copier, "do", lambda task: (begun.append(task), task()))
    state = made()
    for _ in range(_copies.PROBATION + 1):
        state.commit()
        train(state)
    at_vote = []
    monkeypatch.setattr(state, "check_host_updates", lambda: at_vote.append(len(begun)))
    before = len(begun)
    state.commit()
    assert late(state) and at_vote == [before] and len(begun) == before + 2  # the model's and the optimizer's
    expected = contents(state)
    train(state)
    state.restore()
    assert same(contents(state), expected)


def test_copies_of_what_has_not_changed_since_may_be_read_by_others():
    state = made()
    copies = state._handlers["model"].copies
    assert not any(each is None for each in copies.of(state.model.state_dict().values()))
    train(state)
    assert copies.of([torch.zeros(3), state.model[0].weight.detach()]) == [None, None]
    state.save()
    copies = state._handlers["model"].copies
    copies.hold()
    (copied,) = copies.of([state.model[0].weight.detach()])
    assert torch.equal(copied, state.model[0].weight) and copied.data_ptr() != state.model[0].weight.data_ptr()


def test_a_newcomer_has_its_memory_before_others_wait_for_it(monkeypatch):
    given, empty = [], _large_pages.empty_like

    def noted(tensor):
        given.append(empty(tensor).fill_(7))
        return given[-1]

    monkeypatch.setattr(_large_pages, "empty_like", noted)
    model = torch.nn.Linear(64, 32, bias=False)
    state = TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(given) == 1
    state._prepare()
    assert len(given) == 2 and not given[1].any()  # it has been written to
    places = []
    for _ in range(3):
        state.save()
        places.append(state._handlers["model"].copies._buffers[0].data_ptr())
    assert len(given) == 2 and places == [given[1].data_ptr(), given[0].data_ptr(), given[1].data_ptr()]


def storages(state):
    return {each.data_ptr() for each in [*state.model.state_dict().values(), *_tensors(state.optimizer.state_dict())]}


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [each for one in values for each in _tensors(one)]


def test_a_restore_fills_the_tensors_that_there_are_and_lends_the_saved_ones_only():
    state = made()
    train(state)
    state.commit()
    kept, mine = contents(state), storages(state)
    train(state)
    state.restore()
    assert same(contents(state), kept)
    assert storages(state) == mine
    train(state, 2)  # what was saved is nobody else's
    state.restore()
    assert same(contents(state), kept)


class Keeps(torch.nn.Linear):
    """A module that keeps what it is given."""

    def load_state_dict(self, state, *args, **kwargs):
        return super().load_state_dict(state, *args, assign=True, **kwargs)


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="assign= came with PyTorch 2.1")
def test_a_module_that_keeps_what_it_is_given_does_not_get_the_only_copy():
    model = Keeps(3, 2)
    state = TorchState(model, batch=0)
    kept = copy.deepcopy(model.state_dict())
    for _ in range(2):
        state.restore()
        with torch.no_grad():
            model.weight += 1
    state.restore()
    assert same(copy.deepcopy(dict(model.state_dict())), dict(kept))


def copies_made(monkeypatch, state):
    """[how many times anything is saved anew], from now on."""
    made_of = []
    for handler in state._handlers.values():
        kind = type(handler.copies)
        monkeypatch.setattr(kind, "anew", lambda copies, anew=kind.anew: made_of.append(copies) or anew(copies))
        break
    return made_of


@pytest.mark.parametrize("change", ["nothing", "weights", "options", "a callback"])
def test_what_is_saved_already_is_not_saved_again_by_the_sync(monkeypatch, change):
    state = made()
    train(state)
    state.commit()
    if change == "a callback":
        state.register_reset_callbacks([lambda: None])
    state.restore()
    state._is_as_saved = True
    if change == "weights":
        with torch.no_grad():
            state.model[0].weight += 1
    if change == "options":
        state.optimizer.param_groups[0]["lr"] = 0.5
    saves = copies_made(monkeypatch, state)
    state.sync()
    assert len(saves) == {"nothing": 0, "options": 0, "weights": 1, "a callback": 2}[change]
    kept = contents(state)
    train(state, 2)
    state.optimizer.param_groups[0]["lr"] = 0.7
    state.restore()
    assert same(contents(state), kept)


def test_a_sync_some_time_after_a_save_is_a_save(monkeypatch):
    state = made()
    train(state)
    state.commit()
    saves = copies_made(monkeypatch, state)
    state.model[0].weight.data += 1  # has no version
    state.sync()
    assert len(saves) == 2


def test_large_pages_hold_tensors_of_all_kinds():
    large = torch.rand(3, 1 << 19, 2)
    for tensor in large, large.transpose(0, 2), large[:, ::2], large.double(), large.bool(), torch.rand(7), torch.empty(0, 4):
        copy_, usual = _large_pages.clone(tensor), tensor.clone()
        assert torch.equal(copy_, tensor) and copy_.stride() == usual.stride() and copy_.dtype == tensor.dtype


def test_sparse_state_is_saved_and_comes_back():
    layer = torch.nn.Embedding(10, 4, sparse=True)
    state = TorchState(layer, torch.optim.SGD(layer.parameters(), 0.1, momentum=0.9))

    def step():
        state.optimizer.zero_grad()
        layer(torch.randint(10, (3,))).square().sum().backward()
        state.optimizer.step()

    for _ in range(5):
        step()
        state.commit()
    (kept,) = [each["momentum_buffer"].to_dense() for each in state.optimizer.state.values()]
    weights = layer.weight.detach().clone()
    step()
    state.restore()
    (now,) = [each["momentum_buffer"] for each in state.optimizer.state.values()]
    assert now.is_sparse and torch.equal(now.to_dense(), kept) and torch.equal(layer.weight, weights)


def test_weights_that_the_script_changes_by_itself_are_copied_at_once():
    for change in (lambda p: p.data.clamp_(-0.01, 0.01), lambda p: p.mul_(0.5)):
        state = made()
        for _ in range(6):
            with torch.no_grad():
                for parameter in state.model.parameters():
                    change(parameter)
            train(state)
            state.commit()
            assert late(state) == 0


def test_a_commit_stays_good_whatever_steps_follow():
    state = made()
    for _ in range(3 * _copies.PROBATION):
        train(state)
        state.commit()
        assert state._verified()
    train(state, steps=2)
    assert state._verified()


@pytest.mark.parametrize("waits", [False, True])
def test_a_change_that_comes_later_is_noticed_and_the_commit_then_counts_for_nothing(waits):
    state = made()
    for _ in range(6):
        train(state)
        state.commit()
    assert late(state)
    if waits:  # the copies are there before the change
        assert state._verified()
    with torch.no_grad():
        state.model[0].weight.mul_(2)
    assert state._verified() == waits
    train(state)
    state.commit()
    assert late(state) == 0 and state._verified()


def failing_copies(monkeypatch, times):
    """Copies fail so often in the copying thread, or wherever else they are made after that."""
    copies, left = _copies.Copies._copy, [times]

    def failing(self, i):
        if left[0]:
            left[0] -= 1
            raise MemoryError("no memory")
        copies(self, i)

    monkeypatch.setattr(_copies.Copies, "_copy", failing)


def saved_and_trained():
    """Saved so often that what does not change is known, and one step ahead."""
    state = made(torch.optim.SGD)
    for _ in range(6):
        train(state)
        state.save()
    train(state)
    return state


def test_what_the_thread_could_not_copy_is_copied_where_it_is_needed(monkeypatch):
    state = saved_and_trained()
    expected = contents(state)
    monkeypatch.setattr(_copies._copier, "do", lambda task: task())
    with monkeypatch.context() as patch:
        state._is_committing = True  # late copies wait
        state.save()
        state._is_committing = False
        failing_copies(patch, 1)
        assert late(state) == 6 and state._verified()
        train(state)
        state.restore()
    assert same(contents(state), expected)


def test_a_save_that_could_not_be_copied_does_not_count_and_the_next_one_does(monkeypatch):
    state = saved_and_trained()
    monkeypatch.setattr(_copies._copier, "do", lambda task: task())
    state._is_committing = True
    state.save()
    state._is_committing = False
    with monkeypatch.context() as patch:
        failing_copies(patch, 2)
        with pytest.warns(RuntimeWarning, match="could not be copied, and does not count: no memory"):
            assert not state._verified()
        with pytest.raises(MemoryError):
            state.restore()
    train(state)
    expected = contents(state)
    state.save()
    assert late(state) == 0 and state._verified()
    train(state)
    state.restore()
    assert same(contents(state), expected)


def test_a_save_that_fails_waits_for_no_copy(monkeypatch):
    state = saved_and_trained()
    begun = []
    monkeypatch.setattr(_copies._copier, "do", lambda task: (begun.append(task), task()))
    monkeypatch.setattr(state._handlers["optimizer"].copies, "_take", lambda: 1 / 0)
    before = contents(state)
    with pytest.raises(ZeroDivisionError):
        state.save()
    assert not begun and same(contents(state), before)


def test_a_save_that_fails_leaves_the_last_one(monkeypatch):
    state = made()
    train(state)
    state.save()
    kept = contents(state)
    train(state)
    for name in ("optimizer", "model"):
        handler = state._handlers[name]
        monkeypatch.setattr(handler.copies, "_take", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            state.commit()
        monkeypatch.undo()
    state.restore()
    assert same(contents(state), kept)


def test_a_sync_that_fails_leaves_the_last_save_and_one_that_ends_is_a_save(monkeypatch):
    state = made()
    for _ in range(6):
        train(state)
        state.commit()
    kept = contents(state)

    def overwritten(tensors, what, copies_of, early):
        for _, tensor in tensors:
            tensor.zero_()
        raise hvd.HorovodInternalError("a rank was lost")

    from rueda.torch.elastic import _handlers

    monkeypatch.setattr(_handlers, "share_tensors", overwritten)
    with pytest.raises(hvd.HorovodInternalError):
        state.sync()
    monkeypatch.undo()
    state.restore()
    assert same(contents(state), kept)
    train(state)
    newest = contents(state)
    state.sync()
    train(state)
    state.restore()
    assert same(contents(state), newest)


def test_schedulers_and_scalers_keep_their_identity():
    state = made()
    scheduler = torch.optim.lr_scheduler.StepLR(state.optimizer, 1, 0.5)
    scaler = torch.amp.GradScaler("cpu") if hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
    state = TorchState(state.model, state.optimizer, scheduler=scheduler, scaler=scaler, batch=0)
    train(state)
    scheduler.step()
    state.commit()
    train(state)
    scheduler.step()
    assert state.optimizer.param_groups[0]["lr"] == 0.025
    state.restore()
    assert state.scheduler is scheduler and state.scaler is scaler and scheduler.optimizer is state.optimizer
    assert scheduler.last_epoch == 1 and state.optimizer.param_groups[0]["lr"] == 0.05
    state.sync()
    assert state.scheduler is scheduler


def test_an_object_may_be_replaced_and_classes_may_have_handlers_of_their_own():
    state = made()
    train(state)
    other = torch.nn.Linear(2, 2)
    state.model = other
    weight = other.weight.detach().clone()
    with torch.no_grad():
        other.weight.zero_()
    state.restore()
    assert torch.equal(other.weight, weight)

    class Mine:
        number = 3

    class MineHandler(StateHandler):
        def save(self):
            self.saved = self.value.number

        def restore(self):
            self.value.number = self.saved

        def sync(self):
            pass

    registry = get_handler_registry()
    set_handler_registry([*registry, (Mine, MineHandler)])
    try:
        state = TorchState(mine=Mine())
        state.save()
        state.mine.number = 4
        state.restore()
        assert state.mine.number == 3
    finally:
        set_handler_registry(registry)


def test_a_loss_in_what_a_subclass_synchronizes_itself_leaves_what_was_saved():
    class More(TorchState):
        def sync(self):
            super().sync()
            raise hvd.HorovodInternalError()

    model = torch.nn.Linear(4, 1)
    state = More(model, torch.optim.Adam(model.parameters()), batch=0)
    train(state)
    state.save()
    saved = contents(state)
    train(state)
    with pytest.raises(hvd.HorovodInternalError):
        state.sync()
    state.restore()
    assert same(contents(state), saved)


def test_layouts_differ_where_states_do():
    assert made()._layout() == made()._layout()
    other = TorchState(torch.nn.Linear(4, 4), batch=0)
    assert len({made()._layout(), other._layout(), made(torch.optim.SGD)._layout(), made(epoch=1)._layout()}) == 4


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("samples, before, after", [(17, 4, 3), (20, 2, 5), (8, 3, 2), (1, 2, 3), (100, 1, 7)])
def test_samples_are_dealt_out_anew_to_the_ranks_that_are_left(ranks, shuffle, samples, before, after):
    states, done = [], set()
    for rank in range(before):
        ranks(before, rank)
        sampler = ElasticSampler(range(samples), shuffle=shuffle, seed=3)
        assert len(sampler) == len(list(sampler))
        done.update(list(sampler)[:2])
        sampler.record_batch(0, 2)
        states.append(sampler.state_dict())
        assert set(sampler) >= set(sampler.get_indices(0, 2)) and sampler.indices == list(sampler)
    assert all(state == states[0] for state in states)
    rest = []
    for rank in range(after):
        ranks(before, 0)
        sampler = ElasticSampler(range(samples), shuffle=shuffle, seed=3)
        sampler.load_state_dict(states[0])
        ranks(after, rank)
        state = TorchState(sampler=sampler)
        state.on_reset()
        rest.append(list(sampler))
        assert sampler.processed_indices == done
    assert len({len(each) for each in rest}) == 1
    assert set().union(*rest) == set(range(samples)) - done


def test_samples_recorded_by_number_count_too_and_an_epoch_begins_with_none(ranks):
    ranks(2, 0)
    sampler = ElasticSampler(range(10), shuffle=False)
    sampler.record_indices({0, 9})
    sampler.reset()
    assert sampler.remaining_indices == list(range(1, 9)) and sampler.processed_indices == {0, 9}
    state = sampler.state_dict()
    other = ElasticSampler(range(10), shuffle=False)
    other.load_state_dict(state)
    assert other.remaining_indices == sampler.remaining_indices
    sampler.set_epoch(1)
    assert not sampler.processed_indices and len(sampler.remaining_indices) == 10


def test_samples_recorded_in_another_epoch_of_the_data_do_not_count(ranks, monkeypatch):
    from rueda.torch.elastic import _handlers

    ranks(2, 0)
    heard = {}
    newest = {"epoch": 4, "processed_num": 0, "processed_indices": {1}}
    monkeypatch.setattr(_handlers, "broadcast_object", lambda mine: dict(newest))
    monkeypatch.setattr(_handlers, "allgather_object", lambda mine: heard.update(mine=mine) or [{1}, mine])
    for epoch, counts in ((3, set()), (4, {7, 8})):
        sampler = ElasticSampler(range(10), shuffle=False)
        sampler.set_epoch(epoch)
        sampler.record_indices({7, 8})
        TorchState(sampler=sampler)._handlers["sampler"].sync()
        assert heard["mine"] == counts and sampler.epoch == 4 and sampler.processed_indices == {1} | counts


def test_late_copies_are_ordered_among_the_work_of_the_streams_that_train(monkeypatch):
    from rueda.torch.elastic import _streams

    log, now = [], ["training"]

    class Stream:
        def __init__(self, device, kind="copying"):
            self.name = f"{kind} {device}"

        def wait_event(self, event):
            log.append((self.name, "waits for", event))

    class Event:
        def record(self, stream):
            self.stream = stream.name
            log.append((stream.name, "marks"))

        def __eq__(self, other):
            return self.stream == other

    class Tensor:
        is_cuda, device = True, "gpu"

        def record_stream(self, stream):
            log.append((stream.name, "uses"))

    @contextlib.contextmanager
    def on(stream):
        now[0] = "copying"
        yield
        now[0] = "training"

    monkeypatch.setattr(_streams, "_own", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device, now[0]))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    source, copy = Tensor(), Tensor()
    streams = _streams.Streams([source, torch.zeros(1)])
    with streams.copying():
        log.append("copies")
        streams.use(source, copy, torch.zeros(1))
    streams.wait_for_copies()
    assert [stream.name for stream in _streams._own.values()] == ["copying gpu"]
    assert log == [
        ("training gpu", "marks"),
        ("copying gpu", "waits for", "training gpu"),
        "copies",
        ("copying gpu", "uses"),
        ("copying gpu", "uses"),
        ("copying gpu", "marks"),
        ("training gpu", "waits for", "copying gpu"),
    ]


def test_late_copies_ask_for_that_order(monkeypatch):
    log = []

    class Logged(_copies.Streams):
        def copying(self):
            log.append("copying")
            return super().copying()

        def use(self, *tensors):
            log.append("use")

        def wait_for_copies(self):
            log.append("wait")

    monkeypatch.setattr(_copies, "Streams", Logged)
    state = made(torch.optim.SGD)
    for _ in range(6):
        train(state)
        state.commit()
    assert state._verified()
    log.clear()
    train(state)
    state.commit()
    assert late(state) == 6 and state._verified()
    assert log.index("copying") < log.index("use") and log.count("use") == 6
    log.clear()
    train(state)
    assert log and set(log) == {"wait"}


def test_probation_is_as_long_as_the_tests_think():
    assert _copies.PROBATION == 3


def test_a_process_may_end_while_a_commit_is_being_copied():
    program = """
import torch, rueda.torch as hvd
hvd.init()
model = torch.nn.Linear(2000, 2000)
optimizer = torch.optim.Adam(model.parameters())
state = hvd.elastic.TorchState(model, optimizer)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.ones(1, 2000)).sum().backward()
    optimizer.step()
    state.save()
assert sum(len(copies._late) for copies in state._copies()) == 8
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
