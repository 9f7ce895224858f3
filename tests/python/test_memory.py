"""Arrays and tensors in the memory that a host's ranks share."""

import copy
import gc
import io
import os
import pickle

import numpy as np
import rueda
import rueda.torch as hvd
import torch
from expect import is_shared, raises
from rueda._heap import Block
from rueda.torch.memory import storage_of
from worlds import ranks, results

WORLD = "torch"

HEAP = {"RUEDA_HEAP_BYTES": str(64 << 20)}
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@ranks(1, 2)
def test_arrays_are_numpys_in_everything_but_the_place():
    for shape in ((), 5, (3,), (2, 0, 4), (7, 11), [2, 3], (300, 1000)):
        for dtype in (float, np.float32, "int16", bool, np.complex128, "i4,f8"):
            for make in (rueda.empty, rueda.zeros):
                array, plain = make(shape, dtype=dtype), np.zeros(shape, dtype)
                assert array.shape == plain.shape and array.dtype == plain.dtype
                assert array.flags.c_contiguous and array.flags.writeable
                assert (array == plain).all()
                assert array.size == 0 or is_shared(array.ctypes.data)
    assert rueda.empty(3).dtype == np.float64
    like = rueda.empty_like(np.ones((2, 3), np.int8).T)
    assert like.shape == (3, 2) and like.dtype == np.int8 and like.flags.c_contiguous
    assert rueda.empty_like([1.0, 2.0], dtype=np.float32).dtype == np.float32
    with raises(ValueError, "Python objects"):
        rueda.empty(3, dtype=object)
    with raises(ValueError, ""):
        rueda.empty(-1)


@ranks(1, 2)
def test_tensors_are_torchs_in_everything_but_the_place():
    for size in [((),), (5,), (2, 3), (2, 0), (300, 1000), ((4, 5),), (torch.Size([3]),)]:
        for dtype in DTYPES:
            for make in (hvd.empty, hvd.zeros):
                tensor, plain = make(*size, dtype=dtype), torch.zeros(*size, dtype=dtype)
                assert tensor.dtype == dtype and tensor.shape == plain.shape
                assert tensor.stride() == plain.stride() and not tensor._is_view()
                assert torch.equal(tensor, plain)
                assert storage_of(tensor).nbytes() == storage_of(plain).nbytes()
                assert tensor.numel() == 0 or is_shared(tensor.data_ptr())
    assert hvd.empty(2).dtype == torch.get_default_dtype()
    weight = hvd.zeros(3, requires_grad=True)
    (weight * 2).sum().backward()
    assert weight.is_leaf and weight.grad.tolist() == [2.0, 2.0, 2.0]
    with raises(RuntimeError, "negative"):
        hvd.empty(-1)
    with raises(RuntimeError, ""):
        hvd.empty(2, dtype=torch.int32, requires_grad=True)


@ranks(1)
def test_empty_like_keeps_what_torchs_keeps():
    images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    for source in (images, images.transpose(1, 3), torch.ones(3).expand(2, 3), torch.ones(())):
        like, plain = hvd.empty_like(source), torch.empty_like(source)
        assert (like.shape, like.stride(), like.dtype) == (plain.shape, plain.stride(), plain.dtype)
    assert hvd.empty_like(images, memory_format=torch.contiguous_format).is_contiguous()
    assert hvd.empty_like(images, dtype=torch.int8).dtype == torch.int8
    assert hvd.empty_like(images, requires_grad=True).requires_grad


@ranks(1, 2, 3)
def test_collectives_work_on_them():
    size, rank = hvd.size(), hvd.rank()
    total = size * (size + 1) // 2
    for count in (0, 1, 1000, 300000):
        array = rueda.empty(count, np.float32)
        array[:] = rank + 1
        assert (rueda.allreduce(array, op=rueda.Sum) == total).all()
        rueda.allreduce_(array, op=rueda.Sum)
        assert (array == total).all()
        tensor = hvd.empty(count, dtype=torch.bfloat16)
        tensor.fill_(rank + 1)
        hvd.broadcast_(tensor, size - 1)
        assert (tensor == size).all()
    assert hvd.counter("bytes_in_place") >= -1


@ranks(1)
def test_saving_and_copying_takes_the_tensors_own_bytes_only():
    neighbours = [hvd.empty(1000) for _ in range(50)]
    tensor = neighbours[25]
    tensor += torch.arange(1000)
    saved, plain = io.BytesIO(), io.BytesIO()
    torch.save(tensor, saved)
    torch.save(tensor.clone(), plain)
    assert len(saved.getvalue()) <= len(plain.getvalue()) + 64
    saved.seek(0)
    assert torch.equal(torch.load(saved), tensor)
    assert torch.equal(pickle.loads(pickle.dumps(tensor)), tensor)
    assert torch.equal(copy.deepcopy(tensor), tensor)
    with raises(TypeError, "copy the array"):
        copy.copy(Block(1))
    array = rueda.empty(10)
    array += 1
    assert (pickle.loads(pickle.dumps(array)) == 1).all()
    module = torch.nn.Linear(10, 10)
    module.weight.data = hvd.empty_like(module.weight)
    assert module.state_dict()["weight"].data_ptr() == module.weight.data_ptr()


@ranks(1, 2)
def test_forked_children_read_them_and_cannot_write_to_the_parents():
    tensor, array = hvd.empty(1000), rueda.empty(200000)
    tensor += 1
    array += 2
    child = os.fork()
    if child == 0:
        status = 1
        try:
            good = bool((tensor == 1).all()) and bool((array == 2).all())
            tensor.fill_(7)
            array[:] = 7
            del array  # finalizers run in children too
            gc.collect()
            try:
                rueda.empty(1)
            except rueda.HorovodInternalError:
                status = 0 if good and bool((tensor == 7).all()) else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert bool((tensor == 1).all()) and bool((array == 2).all())


@ranks(2)
def test_a_data_loaders_worker_reads_them():
    samples = hvd.empty(64, 3)
    samples += torch.arange(64.0)[:, None]
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(samples),
        batch_size=16,
        num_workers=1,
        multiprocessing_context="fork",
    )
    seen = torch.cat([batch for (batch,) in loader])
    assert torch.equal(seen, samples)


def life_of_memory():
    rueda.init()
    result = {"rank": rueda.rank()}
    most = 40 << 20  # two of them do not fit
    for _ in range(5):
        hvd.empty(most, dtype=torch.uint8)
        rueda.empty(most, np.uint8)
    whole = hvd.empty(most // 4)
    view = whole[5:6]
    del whole
    gc.collect()
    with raises(MemoryError, "RUEDA_HEAP_BYTES"):
        hvd.empty(most // 4)
    array = view.numpy()
    del view
    with raises(MemoryError, "40 MiB of this process's heap of 64 MiB are in use"):
        rueda.empty(most, np.uint8)
    rueda.shutdown()
    array[0] = 3  # still there, and counted
    rueda.init()
    with raises(MemoryError, "are in use"):
        rueda.empty(most, np.uint8)
    assert array[0] == 3
    del array
    last = rueda.empty(most, np.uint8)
    assert not last.any()
    rueda.shutdown()
    del last  # after shutdown
    for module in (rueda, hvd):
        with raises(rueda.HorovodInternalError, "shut down"):
            module.empty(3)
        with raises(rueda.HorovodInternalError, "shut down"):
            module.zeros(0)
    rueda.init()
    keep.append(hvd.empty(5))  # dies with the interpreter
    keep.append(rueda.empty(5))
    return result


keep = []


def test_memory_is_given_back_with_the_last_view_also_after_shutdown(run_ranks):
    for size in (1, 2):
        assert len(results(run_ranks(size, life_of_memory, env=HEAP, manual=True))) == size


def test_before_init_the_error_says_so():
    import pytest

    for module in (rueda, hvd):
        for make in (module.empty, module.zeros):
            with pytest.raises(rueda.HorovodInternalError, match="has not been initialized"):
                make(3)
        with pytest.raises(rueda.HorovodInternalError, match="has not been initialized"):
            module.empty_like(torch.ones(3))
