#include "launcher/tools/bench/rueda_subject.h"

#include <utility>

namespace rueda::bench {
namespace {

int32_t kind_of(Operation operation) {
  switch (operation) {
    case Operation::kAllgather: return RUEDA_ALLGATHER;
    case Operation::kReducescatter: return RUEDA_REDUCESCATTER;
    case Operation::kBroadcast: return RUEDA_BROADCAST;
    case Operation::kAlltoall: return RUEDA_ALLTOALL;
    default: return RUEDA_ALLREDUCE;
  }
}

int32_t code_of(DataType dtype) {
  switch (dtype) {
    case DataType::kF16: return RUEDA_FLOAT16;
    case DataType::kBf16: return RUEDA_BFLOAT16;
    case DataType::kI32: return RUEDA_INT32;
    case DataType::kF64: return RUEDA_FLOAT64;
    case DataType::kF32: break;
  }
  return RUEDA_FLOAT32;
}

// Whose output takes what the ranks send: the operation says how much room there is.
bool needs_rows(Operation operation) {
  return operation == Operation::kAllgather || operation == Operation::kAlltoall;
}

}  // namespace

Result<void*> RuedaSubject::allocate(size_t bytes, bool arena) {
  if (!arena) return Subject::allocate(bytes, false);
  if (api_.alloc == nullptr)
    return Status{Code::kUnimplemented, "this librueda has no rueda_alloc"};
  void* memory = nullptr;
  rueda_error error = RUEDA_ERROR_INIT;
  RUEDA_RETURN_IF_ERROR(status_of(api_.alloc(context_, bytes, &memory, &error), error));
  return memory;
}

void RuedaSubject::release(void* memory, size_t bytes, bool arena) {
  if (arena) {
    api_.free(memory);
  } else {
    Subject::release(memory, bytes, false);
  }
}

Status RuedaSubject::begin(const Case& c, const std::vector<Tensor>& tensors) {
  end();
  const size_t count = tensors.size();
  const std::string prefix = "bench." + std::to_string(cases_++) + ".";
  for (size_t i = 0; i < count; ++i) {
    names_.push_back(prefix + std::to_string(i));
    shapes_.push_back(static_cast<int64_t>(tensors[i].input_count));
  }
  for (size_t i = count; i-- > 0;) {
    rueda_op op = RUEDA_OP_INIT;
    op.kind = kind_of(c.operation);
    op.dtype = code_of(c.dtype);
    op.reduce_op = RUEDA_SUM;
    op.name = names_[i].c_str();
    op.input = tensors[i].input;
    op.output = tensors[i].output;
    op.shape = &shapes_[i];
    op.ndim = 1;
    if (needs_rows(c.operation)) op.output_rows = static_cast<int64_t>(tensors[i].output_count);
    ops_.push_back(op);
  }
  requests_.resize(count, nullptr);
  if (!prepare_) return {};
  rueda_error error = RUEDA_ERROR_INIT;
  return status_of(api_.request_create(context_, ops_.data(), count, 0, requests_.data(), &error),
                   error);
}

Status RuedaSubject::run() { return prepare_ ? run_persistent() : run_anew(); }

Status RuedaSubject::run_persistent() {
  rueda_error error = RUEDA_ERROR_INIT;
  if (ops_.size() == 1) {
    const rueda_op& op = ops_.front();
    return status_of(api_.request_run(requests_.front(), op.input, op.output, nullptr, -1, &error),
                     error);
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    RUEDA_RETURN_IF_ERROR(status_of(
        api_.request_start(requests_[i], ops_[i].input, ops_[i].output, nullptr, &error), error));
  }
  return wait_for_all();
}

Status RuedaSubject::run_anew() {
  rueda_error error = RUEDA_ERROR_INIT;
  if (ops_.size() == 1) return status_of(api_.run(context_, ops_.data(), &error), error);
  for (size_t i = 0; i < ops_.size(); ++i) {
    RUEDA_RETURN_IF_ERROR(
        status_of(api_.start(context_, &ops_[i], 1, 0, &requests_[i], &error), error));
  }
  const Status status = wait_for_all();
  release_all();
  return status;
}

Status RuedaSubject::wait_for_all() {
  rueda_error error = RUEDA_ERROR_INIT;
  for (rueda_request* request : requests_)
    RUEDA_RETURN_IF_ERROR(status_of(api_.request_wait(request, -1, &error), error));
  return {};
}

void RuedaSubject::release_all() {
  for (rueda_request*& request : requests_) api_.request_release(std::exchange(request, nullptr));
}

void RuedaSubject::end() {
  release_all();
  requests_.clear();
  ops_.clear();
  names_.clear();
  shapes_.clear();
}

}  // namespace rueda::bench
