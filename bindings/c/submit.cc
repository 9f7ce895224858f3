#include <vector>

#include "bindings/c/context.h"

using rueda::Result;
using rueda::Status;

namespace {

Result<std::vector<std::shared_ptr<rueda::engine::Work>>> submit(rueda_context* context,
                                                                 const rueda_op* ops, size_t count,
                                                                 bool group) {
  RUEDA_RETURN_IF_ERROR(rueda::c_abi::check(context));
  if (ops == nullptr && count > 0) return rueda::invalid_argument("no operations (NULL)");
  std::vector<rueda::engine::Operation> operations;
  operations.reserve(count);
  const auto* at = reinterpret_cast<const std::byte*>(ops);
  for (size_t i = 0; i < count; ++i) {
    // An array of an older caller has its own stride.
    const auto* op = reinterpret_cast<const rueda_op*>(at);
    RUEDA_ASSIGN_OR_RETURN(auto operation, rueda::c_abi::convert(op));
    operations.push_back(std::move(operation));
    at += op->struct_size;
  }
  return context->runtime->submit(std::move(operations), group);
}

}  // namespace

extern "C" {

int32_t rueda_submit(rueda_context* context, const rueda_op* ops, size_t count, int32_t group,
                     rueda_work** works, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    if (works == nullptr && count > 0)
      return rueda::invalid_argument("nowhere to put the works (NULL)");
    // Handles first: after the submission nothing may fail.
    std::vector<std::unique_ptr<rueda_work>> handles;
    for (size_t i = 0; i < count; ++i) handles.push_back(std::make_unique<rueda_work>());
    RUEDA_ASSIGN_OR_RETURN(auto submitted, submit(context, ops, count, group != 0));
    for (size_t i = 0; i < count; ++i) {
      handles[i]->work = std::move(submitted[i]);
      works[i] = handles[i].release();
    }
    return {};
  });
}

int32_t rueda_run(rueda_context* context, const rueda_op* op, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(rueda::c_abi::check(context));
    RUEDA_ASSIGN_OR_RETURN(auto operation, rueda::c_abi::convert(op));
    return context->runtime->run(std::move(operation));
  });
}

}  // extern "C"
