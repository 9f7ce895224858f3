#include <cstddef>

#include "bindings/c/context.h"
#include "collectives/desc/scaling.h"

namespace rueda::c_abi {
namespace {

constexpr size_t kFirstOpBytes = offsetof(rueda_op, name);  // what every operation says

Result<DType> to_dtype(int32_t number) {
  const auto dtype = static_cast<DType>(number);
  if (number < 0 || number > 255 || !is_valid(dtype))
    return invalid_argument("dtype " + std::to_string(number) + " is not supported.");
  return dtype;
}

Result<ReduceOp> to_reduce_op(int32_t number) {
  const auto op = static_cast<ReduceOp>(number);
  if (number < 0 || number > 255 || !is_valid(op)) {
    return invalid_argument("reduce_op " + std::to_string(number) +
                            " is not one of rueda_reduce_op");
  }
  return op;
}

}  // namespace

Result<engine::Operation> convert(const rueda_op* op, bool with_memory) {
  if (op == nullptr) return invalid_argument("no operation (NULL)");
  rueda_op c = RUEDA_OP_INIT;
  RUEDA_RETURN_IF_ERROR(read_struct(op, kFirstOpBytes, "rueda_op", &c));
  engine::Operation result;
  result.kind = static_cast<CollectiveKind>(c.kind);
  if (c.kind < 0 || c.kind > RUEDA_SCATTER || result.kind == CollectiveKind::kProcessSet) {
    return invalid_argument("kind " + std::to_string(c.kind) + " is not one of rueda_kind");
  }
  RUEDA_ASSIGN_OR_RETURN(result.dtype, to_dtype(c.dtype));
  RUEDA_ASSIGN_OR_RETURN(result.reduce_op, to_reduce_op(c.reduce_op));
  if (c.name != nullptr) result.name = c.name;
  if (c.name != nullptr && result.name.empty())
    return invalid_argument("the name of an operation may not be empty");
  if (c.ndim < 0 || (c.ndim > 0 && c.shape == nullptr)) return invalid_argument("shape is missing");
  if (has_tensor(result.kind) && c.ndim > 0) result.shape.assign(c.shape, c.shape + c.ndim);
  if (c.splits_count < 0 || (c.splits_count > 0 && c.splits == nullptr))
    return invalid_argument("splits are missing");
  if (c.splits_count > 0) result.splits.assign(c.splits, c.splits + c.splits_count);
  if (c.output_splits_count < 0 || (c.output_splits_count > 0 && c.output_splits == nullptr))
    return invalid_argument("output_splits are missing");
  if (c.output_splits_count > 0)
    result.output_splits.assign(c.output_splits, c.output_splits + c.output_splits_count);
  result.input = static_cast<const std::byte*>(c.input);
  result.output = static_cast<std::byte*>(c.output);
  result.output_rows = c.output_rows;
  result.prescale = c.prescale;
  result.postscale = c.postscale;
  result.root = c.root;
  result.peer = c.peer;
  result.tag = c.tag;
  if (c.process_set < 0)
    return invalid_argument("process set " + std::to_string(c.process_set) + " does not exist");
  result.process_set = static_cast<uint32_t>(c.process_set);
  result.device = c.device;
  result.stream = static_cast<cuda::StreamHandle>(c.stream);
  result.site = c.call_site > 0 ? static_cast<uint32_t>(c.call_site) : 0;
  const bool needs_output = with_memory && (result.kind == CollectiveKind::kAllreduce ||
                                            result.kind == CollectiveKind::kBroadcast);
  if (needs_output && result.output == nullptr && element_count(result.shape) > 0) {
    return invalid_argument(std::string(name_of(result.kind)) + ": no output");
  }
  return result;
}

std::chrono::nanoseconds to_nanoseconds(double seconds) {
  if (!(seconds >= 0) || seconds > 4e9) return std::chrono::nanoseconds(-1);
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

}  // namespace rueda::c_abi

int32_t rueda_check_reduction(int32_t dtype, int32_t reduce_op, double prescale, double postscale,
                              int32_t device, rueda_error* error) {
  using namespace rueda::c_abi;
  return guarded(error, [&]() -> rueda::Status {
    RUEDA_ASSIGN_OR_RETURN(const rueda::DType type, to_dtype(dtype));
    RUEDA_ASSIGN_OR_RETURN(const rueda::ReduceOp op, to_reduce_op(reduce_op));
    return rueda::check_reduction(type, op, prescale, postscale, device >= 0);
  });
}
