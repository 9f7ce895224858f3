// DeviceCommunicator's collectives: which calls of NCCL, or kernels, each of them is.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "collectives/nccl/device_adasum.h"
#include "collectives/nccl/device_combine.h"
#include "collectives/nccl/device_communicator.h"
#include "collectives/nccl/device_packing.h"

namespace rueda::nccl {
namespace {

// A factor of the inputs lives as long as the calls that use it.
template <typename Function>
Status with_op(Session& session, const nccl::Reduction& reduction, Function calls) {
  if (reduction.factor == 1) return calls(reduction.op);
  const nccl::Library& library = session.library();
  if (library->make_pre_mul_sum == nullptr) {
    return {Code::kUnimplemented, library.describe() + " cannot scale; install a newer one"};
  }
  alignas(8) std::byte factor[8];
  nccl::write_factor(reduction.type, reduction.factor, factor);
  nccl::Op op = 0;
  RUEDA_RETURN_IF_ERROR(library.check(
      library->make_pre_mul_sum(&op, factor, reduction.type, nccl::kScalarOnHost, session.handle()),
      "ncclRedOpCreatePreMulSum", session.handle()));
  const Status called = calls(op);
  (void)library->destroy_op(op, session.handle());
  return called;
}

// A batch's packing, which stays what it is as long as its tensors lie where they did.
class Packed {
 public:
  // Null: they are reduced where they lie.
  const Packing* of(std::span<const Part> tensors, DType dtype, std::byte* buffer) {
    if (!std::equal(tensors.begin(), tensors.end(), parts_.begin(), parts_.end())) {
      packing_ = plan_packing(tensors, dtype, buffer);
      parts_.assign(tensors.begin(), tensors.end());
    }
    return packing_ ? &*packing_ : nullptr;
  }

  const Packing* used = nullptr;  // by the call under way

 private:
  std::vector<Part> parts_;
  std::optional<Packing> packing_;
};

template <typename Type>
size_t unsigned_of(Type count) {
  return static_cast<size_t>(count);
}

}  // namespace

Script DeviceCommunicator::make_script(const CollectiveDesc& desc, std::span<const Part> tensors) {
  switch (desc.kind) {
    case CollectiveKind::kAllreduce:
      return desc.op == ReduceOp::kAdasum ? adasum(desc, tensors) : allreduce(desc, tensors);
    case CollectiveKind::kReduce: return reduce(desc, tensors);
    case CollectiveKind::kReducescatter: return reducescatter(desc, tensors);
    case CollectiveKind::kAllgather: return allgather(desc, tensors);
    case CollectiveKind::kBroadcast: return broadcast(desc, tensors);
    case CollectiveKind::kAlltoall: return alltoall(desc, tensors);
    default: return refuse({});
  }
}

Script DeviceCommunicator::allreduce(const CollectiveDesc& desc, std::span<const Part> tensors) {
  const Scaling& scaling = desc.scaling;
  auto plan = nccl::plan_reduction(desc.dtype, desc.op, scaling.prescale, scaling.finish.factor,
                                   scaling.finish.divisor, size());
  if (!plan.ok()) return combine(desc, tensors, plan.status());
  // Chosen when its turn has come: only then is it known whether all ranks can pack.
  auto packed = std::make_shared<Packed>();
  Stage stage;
  stage.after = [this, packed](Session& s) -> Status {
    const Packing* const packing = packed->used;
    return packing != nullptr ? copy(s, packing->out, packing->format) : Status();
  };
  stage.calls = [this, packed, tensors, dtype = desc.dtype,
                 reduction = *plan](Session& s) -> Status {
    RUEDA_RETURN_IF_ERROR(check_reduction(reduction.type, s.library().version(), capability_));
    // A graph may run at the same time as what comes after it: the buffer is not for both.
    const bool packs = buffer_.data != nullptr && !s.captures();
    packed->used = packs ? packed->of(tensors, dtype, buffer_.data.get()) : nullptr;
    const Packing* const packing = packed->used;
    if (packing != nullptr) RUEDA_RETURN_IF_ERROR(copy(s, packing->in, packing->format));
    return with_op(s, reduction, [&](nccl::Op number) -> Status {
      if (packing != nullptr) {
        return s.call("ncclAllReduce", s.library()->all_reduce, buffer_.data.get(),
                      buffer_.data.get(), unsigned_of(packing->count) * reduction.parts,
                      reduction.type, number);
      }
      for (const Part& part : tensors) {
        if (part.count == 0) continue;
        RUEDA_RETURN_IF_ERROR(s.call("ncclAllReduce", s.library()->all_reduce, part.in, part.out,
                                     unsigned_of(part.count) * reduction.parts, reduction.type,
                                     number));
      }
      return {};
    });
  };
  return run({stage}, tensors);
}

Script DeviceCommunicator::adasum(const CollectiveDesc& desc, std::span<const Part> tensors) {
  if (desc.dtype == DType::kFloat64) {
    return refuse({Code::kUnimplemented,
                   "Adasum of float64 is not available on GPUs; use float32, or copy the tensor "
                   "to the host (tensor.cpu())"});
  }
  const double factor = desc.scaling.prescale * desc.scaling.finish.factor;
  auto call = std::make_shared<DeviceAdasum>(tensors, desc.dtype, factor, rank_, size());
  std::vector<Stage> stages;
  const auto exchange = [this, call](Session& s) -> Status {
    if (buffer_.data == nullptr || s.captures()) {
      return {Code::kUnimplemented,
              s.captures()
                  ? "Adasum cannot be captured into a CUDA graph"
                  : "Adasum on GPUs needs rueda's kernels (librueda_cuda.so, built with nvcc) on "
                    "all ranks; copy the tensor to the host (tensor.cpu())"};
    }
    RUEDA_ASSIGN_OR_RETURN(std::byte* const memory, scratch(call->scratch_bytes()));
    call->use(memory);
    return call->exchange_calls(s);
  };
  stages.push_back(
      {exchange, [this, call](Session& s) { return call->gather_vectors(s, *kernels_); }});
  for (int level = 0; level < call->levels(); ++level) {
    stages.push_back(
        {[this, call, level](Session& s) { return call->level_calls(level, s, *kernels_); },
         [this, call, level](Session& s) { return call->add_vectors(level, s, *kernels_); }});
  }
  stages.push_back({[this, call](Session& s) { return call->finish_calls(s, *kernels_); }, {}});
  return run(std::move(stages), tensors);
}

// Of what NCCL lacks: by rueda's kernel.
Script DeviceCommunicator::combine(const CollectiveDesc& desc, std::span<const Part> tensors,
                                   const Status& lacks) {
  if (is_float8(desc.dtype)) return refuse(lacks);
  auto call = std::make_shared<DeviceCombine>(desc, tensors, rank_, size());
  Stage exchange;
  exchange.calls = [this, call, lacks](Session& s) -> Status {
    if (buffer_.data == nullptr || s.captures()) {
      return lacks.with_message(lacks.message() +
                                (s.captures()
                                     ? "; it cannot be captured into a CUDA graph"
                                     : "; or install rueda's kernels, which have it, on all ranks "
                                       "(librueda_cuda.so, built with nvcc)"));
    }
    RUEDA_ASSIGN_OR_RETURN(std::byte* const memory, scratch(call->scratch_bytes()));
    call->use(memory);
    return call->exchange_calls(s);
  };
  exchange.after = [this, call](Session& s) { return call->combine(s, *kernels_); };
  std::vector<Stage> stages = {std::move(exchange)};
  if (desc.kind == CollectiveKind::kAllreduce)
    stages.push_back({[call](Session& s) { return call->gather_calls(s); }, {}});
  return run(std::move(stages), tensors);
}

Script DeviceCommunicator::reduce(const CollectiveDesc& desc, std::span<const Part> tensors) {
  const Scaling& scaling = desc.scaling;
  auto plan = nccl::plan_reduction(desc.dtype, desc.op, scaling.prescale, scaling.finish.factor,
                                   scaling.finish.divisor, size());
  if (!plan.ok()) return combine(desc, tensors, plan.status());
  Stage stage;
  stage.calls = [this, root = desc.root, tensors, reduction = *plan](Session& s) -> Status {
    RUEDA_RETURN_IF_ERROR(check_reduction(reduction.type, s.library().version(), capability_));
    return with_op(s, reduction, [&](nccl::Op number) -> Status {
      for (const Part& part : tensors) {
        if (part.count == 0) continue;
        RUEDA_RETURN_IF_ERROR(s.call("ncclReduce", s.library()->reduce, part.in, part.out,
                                     unsigned_of(part.count) * reduction.parts, reduction.type,
                                     number, root));
      }
      return {};
    });
  };
  return run({stage}, tensors);
}

Script DeviceCommunicator::reducescatter(const CollectiveDesc& desc,
                                         std::span<const Part> tensors) {
  const Scaling& scaling = desc.scaling;
  auto plan = nccl::plan_reduction(desc.dtype, desc.op, scaling.prescale, scaling.finish.factor,
                                   scaling.finish.divisor, size());
  if (!plan.ok()) return combine(desc, tensors, plan.status());
  const std::vector<int64_t>& counts = desc.counts;
  const bool equal = std::all_of(counts.begin(), counts.end(),
                                 [&](int64_t count) { return count == counts.front(); });
  Stage stage;
  stage.calls = [this, &desc, tensors, equal, reduction = *plan](Session& s) -> Status {
    RUEDA_RETURN_IF_ERROR(check_reduction(reduction.type, s.library().version(), capability_));
    return with_op(s, reduction, [&](nccl::Op number) -> Status {
      const std::byte* from = tensors[0].in;
      if (equal && desc.counts.front() > 0) {
        return s.call("ncclReduceScatter", s.library()->reduce_scatter, from, tensors[0].out,
                      unsigned_of(desc.counts.front()) * reduction.parts, reduction.type, number);
      }
      for (size_t root = 0; root < desc.counts.size(); ++root) {
        if (desc.counts[root] == 0) continue;
        RUEDA_RETURN_IF_ERROR(s.call("ncclReduce", s.library()->reduce, from, tensors[0].out,
                                     unsigned_of(desc.counts[root]) * reduction.parts,
                                     reduction.type, number, static_cast<int>(root)));
        from += unsigned_of(desc.counts[root]) * size_of(desc.dtype);
      }
      return {};
    });
  };
  return run({stage}, tensors);
}

Script DeviceCommunicator::allgather(const CollectiveDesc& desc, std::span<const Part> tensors) {
  Stage stage;
  stage.calls = [&desc, tensors, ranks = unsigned_of(size())](Session& s) -> Status {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t* blocks = &desc.counts[i * ranks];
      const bool equal =
          std::all_of(blocks, blocks + ranks, [&](int64_t bytes) { return bytes == blocks[0]; });
      if (equal) {
        if (blocks[0] == 0) continue;
        RUEDA_RETURN_IF_ERROR(s.call("ncclAllGather", s.library()->all_gather, tensors[i].in,
                                     tensors[i].out, unsigned_of(blocks[0]), nccl::Type::kInt8));
        continue;
      }
      std::byte* to = tensors[i].out;
      for (size_t root = 0; root < ranks; ++root) {
        const size_t bytes = unsigned_of(blocks[root]);
        if (bytes == 0) continue;
        RUEDA_RETURN_IF_ERROR(s.call("ncclBroadcast", s.library()->broadcast, tensors[i].in, to,
                                     bytes, nccl::Type::kInt8, static_cast<int>(root)));
        to += bytes;
      }
    }
    return {};
  };
  return run({stage}, tensors);
}

Script DeviceCommunicator::broadcast(const CollectiveDesc& desc, std::span<const Part> tensors) {
  Stage stage;
  stage.calls = [root = desc.root, tensors](Session& s) -> Status {
    for (const Part& part : tensors) {
      if (part.count == 0) continue;
      RUEDA_RETURN_IF_ERROR(s.call("ncclBroadcast", s.library()->broadcast, part.in, part.out,
                                   unsigned_of(part.count), nccl::Type::kInt8, root));
    }
    return {};
  };
  return run({stage}, tensors);
}

Script DeviceCommunicator::alltoall(const CollectiveDesc& desc, std::span<const Part> tensors) {
  Stage stage;
  stage.calls = [&desc, tensors, me = unsigned_of(rank_),
                 ranks = unsigned_of(size())](Session& s) -> Status {
    const std::byte* from = tensors[0].in;
    std::byte* to = tensors[0].out;
    for (size_t peer = 0; peer < ranks; ++peer) {
      const size_t sent = unsigned_of(desc.counts[me * ranks + peer]);
      const size_t received = unsigned_of(desc.counts[peer * ranks + me]);
      if (sent > 0) {
        RUEDA_RETURN_IF_ERROR(s.call("ncclSend", s.library()->send, from, sent, nccl::Type::kInt8,
                                     static_cast<int>(peer)));
      }
      if (received > 0) {
        RUEDA_RETURN_IF_ERROR(s.call("ncclRecv", s.library()->recv, to, received, nccl::Type::kInt8,
                                     static_cast<int>(peer)));
      }
      from += sent;
      to += received;
    }
    return {};
  };
  return run({stage}, tensors);
}

}  // namespace rueda::nccl
