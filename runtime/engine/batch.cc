#include "runtime/engine/batch.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rueda::engine {
namespace {

int64_t row_bytes(const wire::Request& r) {
  return elements_per_row(r.shape) * static_cast<int64_t>(size_of(r.dtype));
}

// Kinds of ordered groups are others' in disguise: who has nothing to do with the result gets none
// of it, or memory that nobody looks at. NCCL reduces to one rank by itself.
CollectiveKind collective_of(const wire::Request& r) {
  switch (r.kind) {
    case CollectiveKind::kReduce:
      return r.device < 0 ? CollectiveKind::kAllreduce : CollectiveKind::kReduce;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter: return CollectiveKind::kAlltoall;
    default: return r.kind;
  }
}

int64_t rows_of(const wire::Request& r, Rank rank, Rank ranks) {
  if (r.splits.empty()) return split_rows(r.shape[0], rank, ranks);
  return r.splits[static_cast<size_t>(rank)];
}

}  // namespace

int64_t bytes_of(const wire::Request& r) {
  if (!has_tensor(r.kind)) return 0;
  return element_count(r.shape) * static_cast<int64_t>(size_of(r.dtype));
}

int64_t bytes_of(std::span<Request* const> requests) {
  int64_t bytes = 0;
  for (const Request* request : requests) bytes += bytes_of(request->announcement);
  return bytes;
}

CollectiveDesc describe(std::span<const wire::Request* const> requests,
                        std::span<const SizesPtr> sizes, Rank ranks) {
  const wire::Request& first = *requests.front();
  CollectiveDesc desc;
  desc.kind = collective_of(first);
  desc.tensors = has_tensor(first.kind) ? requests.size() : 0;
  if (desc.kind == CollectiveKind::kAllreduce || desc.kind == CollectiveKind::kReduce ||
      desc.kind == CollectiveKind::kReducescatter) {
    desc.dtype = first.dtype;
    desc.op = first.reduce_op;
    // Was checked when it was submitted.
    desc.scaling =
        plan_scaling(first.dtype, first.reduce_op, first.prescale, first.postscale, ranks).value();
  }
  switch (first.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce:
      if (desc.kind == CollectiveKind::kReduce) desc.root = first.root;
      for (const wire::Request* r : requests) desc.counts.push_back(element_count(r->shape));
      break;
    case CollectiveKind::kBroadcast:
      desc.root = first.root;
      for (const wire::Request* r : requests) desc.counts.push_back(bytes_of(*r));
      break;
    case CollectiveKind::kReducescatter:
      for (Rank rank = 0; rank < ranks; ++rank) {
        desc.counts.push_back(rows_of(first, rank, ranks) * elements_per_row(first.shape));
      }
      break;
    case CollectiveKind::kAllgather:
      for (size_t i = 0; i < requests.size(); ++i) {
        for (const int64_t rows : *sizes[i]) desc.counts.push_back(rows * row_bytes(*requests[i]));
      }
      break;
    case CollectiveKind::kAlltoall:
      for (const int64_t rows : *sizes.front()) desc.counts.push_back(rows * row_bytes(first));
      break;
    case CollectiveKind::kGather:
    case CollectiveKind::kScatter: {
      // The matrix has one column, or one row.
      const auto size = static_cast<size_t>(ranks);
      const auto root = static_cast<size_t>(first.root);
      const bool gathers = first.kind == CollectiveKind::kGather;
      desc.counts.assign(size * size, 0);
      for (size_t rank = 0; rank < size; ++rank) {
        desc.counts[gathers ? rank * size + root : root * size + rank] =
            (*sizes.front())[rank] * row_bytes(first);
      }
      break;
    }
    default: break;
  }
  return desc;
}

TensorResult result_of(const wire::Request& request, const SizesPtr& sizes, Rank rank, Rank ranks) {
  TensorResult result;
  result.shape = request.shape;
  switch (request.kind) {
    case CollectiveKind::kReducescatter: result.shape[0] = rows_of(request, rank, ranks); break;
    case CollectiveKind::kScatter: result.shape[0] = (*sizes)[static_cast<size_t>(rank)]; break;
    case CollectiveKind::kGather:
      if (rank == request.root) {
        result.received_rows = *sizes;
      } else {
        result.shape[0] = 0;
      }
      break;
    case CollectiveKind::kAllgather: result.received_rows = *sizes; break;
    case CollectiveKind::kAlltoall:
      for (Rank from = 0; from < ranks; ++from)
        result.received_rows.push_back(
            (*sizes)[static_cast<size_t>(from) * static_cast<size_t>(ranks) +
                     static_cast<size_t>(rank)]);
      break;
    default: break;
  }
  if (!result.received_rows.empty()) {
    result.shape[0] = 0;
    for (const int64_t rows : result.received_rows) result.shape[0] += rows;
  }
  return result;
}

Status place_memory(Request* request, const TensorResult& result, nccl::DeviceCommunicator* device,
                    Part* part) {
  const DType dtype = request->announcement.dtype;
  std::byte* given = request->out;
  if (given == nullptr && device != nullptr) {
    const auto bytes = static_cast<size_t>(element_count(result.shape)) * size_of(dtype);
    RUEDA_ASSIGN_OR_RETURN(auto memory, device->allocate(request->device, bytes));
    given = memory->data();
    request->keep_device_memory(std::move(memory));
  }
  part->in = request->in;
  part->out = request->set_output(given, result.shape, dtype, result.received_rows);
  if (part->out == nullptr) {
    return {Code::kResourceExhausted, "no memory for the result of " + request->announcement.name +
                                          ", " + std::to_string(element_count(result.shape)) +
                                          " elements of " + std::string(name_of(dtype))};
  }
  return {};
}

}  // namespace rueda::engine
