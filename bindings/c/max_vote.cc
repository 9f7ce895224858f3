#include "bindings/c/max_vote.h"

#include <chrono>
#include <cstddef>

namespace rueda::c_abi {
namespace {

engine::Operation largest(const char* name) {
  engine::Operation operation;
  operation.kind = CollectiveKind::kAllreduce;
  operation.name = name;
  operation.dtype = DType::kInt64;
  operation.reduce_op = ReduceOp::kMax;
  operation.shape = {1};
  return operation;
}

}  // namespace

Result<int64_t> MaxVote::ask(engine::Runtime* runtime, const std::function<int64_t()>& mine) {
  const std::lock_guard lock(mutex_);
  if (request_ == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(auto made, runtime->make({largest(name_)}));
    request_ = std::move(made.front());
  }
  if (!under_way_) {
    value_ = mine();
    auto* const bytes = reinterpret_cast<std::byte*>(&value_);
    RUEDA_RETURN_IF_ERROR(request_->start(bytes, bytes));
    under_way_ = true;
  }
  const Status ended = request_->wait(std::chrono::nanoseconds(-1));
  if (ended.code() == Code::kAborted) return ended;
  under_way_ = false;
  RUEDA_RETURN_IF_ERROR(ended);
  return value_;
}

}  // namespace rueda::c_abi
