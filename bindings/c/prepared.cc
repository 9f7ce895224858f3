#include "runtime/engine/prepared.h"

#include "bindings/c/context.h"
#include "collectives/host/fork_guard.h"

using rueda::Status;

struct rueda_prepared {
  std::shared_ptr<rueda::engine::Prepared> prepared;
  uint64_t process;
};

namespace {

Status check(const rueda_prepared* prepared) {
  if (prepared == nullptr) return rueda::invalid_argument("no prepared operation (NULL)");
  return rueda::c_abi::check_process(prepared->process);
}

Status check_memory(const rueda_prepared* prepared, const void* input, const void* output) {
  RUEDA_RETURN_IF_ERROR(check(prepared));
  if ((input == nullptr || output == nullptr) && prepared->prepared->needs_memory())
    return rueda::invalid_argument(prepared->prepared->title() + ": no input or no output");
  return {};
}

}  // namespace

extern "C" {

int32_t rueda_prepare(rueda_context* context, const rueda_op* op, rueda_prepared** prepared,
                      rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(rueda::c_abi::check(context));
    if (prepared == nullptr)
      return rueda::invalid_argument("nowhere to put the prepared operation (NULL)");
    RUEDA_ASSIGN_OR_RETURN(auto operation, rueda::c_abi::convert(op, false));
    auto handle = std::make_unique<rueda_prepared>();
    RUEDA_ASSIGN_OR_RETURN(handle->prepared, context->runtime->prepare(std::move(operation)));
    handle->process = rueda::host::fork_generation();
    *prepared = handle.release();
    return {};
  });
}

int32_t rueda_start(rueda_prepared* prepared, const void* input, void* output, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check_memory(prepared, input, output));
    return prepared->prepared->start(static_cast<const std::byte*>(input),
                                     static_cast<std::byte*>(output), prepared->prepared->stream());
  });
}

int32_t rueda_start_on(rueda_prepared* prepared, const void* input, void* output, void* stream,
                       rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check_memory(prepared, input, output));
    return prepared->prepared->start(static_cast<const std::byte*>(input),
                                     static_cast<std::byte*>(output),
                                     static_cast<rueda::cuda::StreamHandle>(stream));
  });
}

int32_t rueda_prepared_stream_wait(rueda_prepared* prepared, void* stream, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check(prepared));
    return prepared->prepared->make_wait(static_cast<rueda::cuda::StreamHandle>(stream));
  });
}

int32_t rueda_prepared_released(rueda_prepared* prepared) {
  return prepared != nullptr && prepared->prepared->released() ? 1 : 0;
}

int32_t rueda_prepared_wait(rueda_prepared* prepared, double timeout_seconds, rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check(prepared));
    return prepared->prepared->wait(rueda::c_abi::to_nanoseconds(timeout_seconds));
  });
}

int32_t rueda_prepared_poll(rueda_prepared* prepared) {
  return prepared != nullptr && prepared->prepared->done() ? 1 : 0;
}

int32_t rueda_run_prepared(rueda_prepared* prepared, const void* input, void* output,
                           rueda_error* error) {
  return rueda::c_abi::guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check_memory(prepared, input, output));
    return prepared->prepared->run(static_cast<const std::byte*>(input),
                                   static_cast<std::byte*>(output), prepared->prepared->stream());
  });
}

void rueda_prepared_release(rueda_prepared* prepared) { delete prepared; }

}  // extern "C"
