// libstub_nccl.so: the collectives, send and recv, and reductions with a factor.
#include "tests/support/stub_nccl_comm.h"
#include "tests/support/stub_nccl_numbers.h"

namespace {

std::atomic<int> next_op{5};

double factor_of(ncclComm* comm, Op op) {
  const std::lock_guard lock(comm->mutex);
  const auto it = comm->factors.find(op);
  return it == comm->factors.end() ? 1.0 : it->second;
}

}  // namespace

#ifndef STUB_NCCL_OLD
EXPORT ResultCode ncclRedOpCreatePreMulSum(Op* op, void* factor, Type type, int residence,
                                           ncclComm* comm) {
  if (residence != rueda::nccl::kScalarOnHost) return kInvalidArgument;
  *op = next_op++;
  const std::lock_guard lock(comm->mutex);
  comm->factors[*op] = rueda::stub::read(type, factor, 0);
  return 0;
}
EXPORT ResultCode ncclRedOpDestroy(Op, ncclComm*) { return 0; }
#endif

EXPORT ResultCode ncclReduce(const void* in, void* out, size_t count, Type type, Op op, int root,
                             ncclComm* comm, Stream stream) {
  Call call;
  const double factor = factor_of(comm, op);
  const size_t whole = count * rueda::stub::bytes_of(type);
  call.touches = {{in, whole}, {out, root < 0 || root == comm->rank ? whole : 0}};
  call.work = [=](ncclComm* c) {
    rueda::stub::Sum sum(type, op, factor, count);
    const size_t unit = rueda::stub::bytes_of(type);
    const bool wanted = root < 0 || root == c->rank;
    if (c->exchange(in, count * unit,
                    [&](int, const std::byte* data, size_t at, size_t n) {
                      if (wanted) sum.add(data, at / unit, n / unit);
                    }) &&
        wanted) {
      sum.store(out, 0, count, c->size);
    }
  };
  return add(root < 0 ? "ncclAllReduce" : "ncclReduce", comm, stream, std::move(call));
}
EXPORT ResultCode ncclAllReduce(const void* in, void* out, size_t count, Type type, Op op,
                                ncclComm* comm, Stream stream) {
  return ncclReduce(in, out, count, type, op, -1, comm, stream);
}
EXPORT ResultCode ncclReduceScatter(const void* in, void* out, size_t count, Type type, Op op,
                                    ncclComm* comm, Stream stream) {
  Call call;
  const double factor = factor_of(comm, op);
  const size_t part = count * rueda::stub::bytes_of(type);
  call.touches = {{in, part * static_cast<size_t>(comm->size)}, {out, part}};
  call.work = [=](ncclComm* c) {
    const size_t all = count * static_cast<size_t>(c->size);
    rueda::stub::Sum sum(type, op, factor, all);
    const size_t unit = rueda::stub::bytes_of(type);
    if (c->exchange(in, all * unit, [&](int, const std::byte* data, size_t at, size_t n) {
          sum.add(data, at / unit, n / unit);
        })) {
      sum.store(out, count * static_cast<size_t>(c->rank), count, c->size);
    }
  };
  return add("ncclReduceScatter", comm, stream, std::move(call));
}
EXPORT ResultCode ncclBroadcast(const void* in, void* out, size_t count, Type type, int root,
                                ncclComm* comm, Stream stream) {
  Call call;
  const size_t whole = count * rueda::stub::bytes_of(type);
  call.touches = {{in, root == comm->rank ? whole : 0}, {out, whole}};
  call.work = [=](ncclComm* c) {
    const size_t bytes = count * rueda::stub::bytes_of(type);
    std::vector<std::byte> none(c->rank == root ? 0 : bytes);
    c->exchange(c->rank == root ? in : none.data(), bytes,
                [&](int peer, const std::byte* data, size_t at, size_t n) {
                  if (peer == root) std::memcpy(static_cast<std::byte*>(out) + at, data, n);
                });
  };
  return add("ncclBroadcast", comm, stream, std::move(call));
}
EXPORT ResultCode ncclAllGather(const void* in, void* out, size_t count, Type type, ncclComm* comm,
                                Stream stream) {
  Call call;
  const size_t part = count * rueda::stub::bytes_of(type);
  call.touches = {{in, part}, {out, part * static_cast<size_t>(comm->size)}};
  call.work = [=](ncclComm* c) {
    const size_t bytes = count * rueda::stub::bytes_of(type);
    c->exchange(in, bytes, [&](int peer, const std::byte* data, size_t at, size_t n) {
      std::memcpy(static_cast<std::byte*>(out) + static_cast<size_t>(peer) * bytes + at, data, n);
    });
  };
  return add("ncclAllGather", comm, stream, std::move(call));
}
EXPORT ResultCode ncclSend(const void* in, size_t count, Type type, int peer, ncclComm* comm,
                           Stream stream) {
  Call call;
  call.in = in;
  call.bytes = count * rueda::stub::bytes_of(type);
  call.touches = {{in, call.bytes}};
  call.peer = peer;
  return add("ncclSend", comm, stream, std::move(call));
}
EXPORT ResultCode ncclRecv(void* out, size_t count, Type type, int peer, ncclComm* comm,
                           Stream stream) {
  Call call;
  call.out = out;
  call.bytes = count * rueda::stub::bytes_of(type);
  call.touches = {{out, call.bytes}};
  call.peer = peer;
  return add("ncclRecv", comm, stream, std::move(call));
}
