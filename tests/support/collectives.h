// Collectives of a communicator as one call each: described, prepared, with their memory filled in,
// ready to start.
#pragma once

#include <memory>
#include <stdexcept>
#include <vector>

#include "collectives/desc/communicator.h"

namespace rueda::testing {

using CollectivePtr = std::unique_ptr<Collective>;

// One tensor of an allgather: this rank's block, where all blocks go, and every rank's bytes.
struct Gathered {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<int64_t> bytes;
};

inline CollectivePtr prepared(Communicator& communicator, CollectiveDesc desc,
                              const std::vector<Part>& memory) {
  auto made = communicator.init(std::move(desc));
  if (!made.ok()) throw std::runtime_error(made.status().to_string());
  for (size_t i = 0; i < memory.size(); ++i) {
    made.value()->tensors()[i].in = memory[i].in;
    made.value()->tensors()[i].out = memory[i].out;
  }
  return std::move(made).value();
}

inline CollectivePtr allreduce(Communicator& communicator, const std::vector<Part>& parts,
                               DType dtype, ReduceOp op, const Scaling& scaling) {
  CollectiveDesc desc;
  desc.dtype = dtype;
  desc.op = op;
  desc.scaling = scaling;
  desc.tensors = parts.size();
  for (const Part& part : parts) desc.counts.push_back(part.count);
  return prepared(communicator, std::move(desc), parts);
}

inline CollectivePtr reducescatter(Communicator& communicator, const std::byte* in, std::byte* out,
                                   std::vector<int64_t> counts, DType dtype, ReduceOp op,
                                   const Scaling& scaling) {
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kReducescatter;
  desc.dtype = dtype;
  desc.op = op;
  desc.scaling = scaling;
  desc.counts = std::move(counts);
  return prepared(communicator, std::move(desc), {{in, out, 0}});
}

inline CollectivePtr allgather(Communicator& communicator, const std::vector<Gathered>& tensors) {
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kAllgather;
  desc.tensors = tensors.size();
  std::vector<Part> memory;
  for (const Gathered& tensor : tensors) {
    desc.counts.insert(desc.counts.end(), tensor.bytes.begin(), tensor.bytes.end());
    memory.push_back({tensor.in, tensor.out, 0});
  }
  return prepared(communicator, std::move(desc), memory);
}

// count: bytes of each tensor.
inline CollectivePtr broadcast(Communicator& communicator, Rank root,
                               const std::vector<Part>& tensors) {
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kBroadcast;
  desc.root = root;
  desc.tensors = tensors.size();
  for (const Part& tensor : tensors) desc.counts.push_back(tensor.count);
  return prepared(communicator, std::move(desc), tensors);
}

// bytes: ranks x ranks, from row to column.
inline CollectivePtr alltoall(Communicator& communicator, const std::byte* in, std::byte* out,
                              std::vector<int64_t> bytes) {
  CollectiveDesc desc;
  desc.kind = CollectiveKind::kAlltoall;
  desc.counts = std::move(bytes);
  return prepared(communicator, std::move(desc), {{in, out, 0}});
}

}  // namespace rueda::testing
