// Requests behind the C ABI.
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "bindings/c/context.h"
#include "collectives/host/fork_guard.h"

using rueda::Result;
using rueda::Status;
using rueda::c_abi::guarded;
using rueda::c_abi::guarded_value;
using rueda::engine::Request;

constexpr std::chrono::nanoseconds kForEver{-1};

namespace rueda::c_abi {

std::unique_ptr<rueda_request> make_handle() {
  auto handle = std::make_unique<rueda_request>();
  handle->process = host::fork_generation();
  return handle;
}

void fill(rueda_request* handle, engine::RequestPtr request) {
  if (request->persistent) handle->told = request->starts();  // it has not been started
  handle->operation = request.get();
  handle->completion = std::move(request);
}

}  // namespace rueda::c_abi

namespace {

using Make = Result<std::vector<rueda::engine::RequestPtr>> (rueda::engine::Runtime::*)(
    std::vector<rueda::engine::Operation>, bool);

Result<std::vector<rueda::engine::Operation>> operations_of(const rueda_op* ops, size_t count,
                                                            bool with_memory) {
  if (ops == nullptr && count > 0) return rueda::invalid_argument("no operations (NULL)");
  std::vector<rueda::engine::Operation> operations;
  operations.reserve(count);
  const auto* at = reinterpret_cast<const std::byte*>(ops);
  for (size_t i = 0; i < count; ++i) {
    // An array of an older caller has its own stride.
    const auto* op = reinterpret_cast<const rueda_op*>(at);
    RUEDA_ASSIGN_OR_RETURN(auto operation, rueda::c_abi::convert(op, with_memory));
    operations.push_back(std::move(operation));
    at += op->struct_size;
  }
  return operations;
}

int32_t make(rueda_context* context, const rueda_op* ops, size_t count, int32_t group,
             rueda_request** requests, rueda_error* error, Make how, bool with_memory) {
  return guarded(error, [&]() -> Status {
    if (requests == nullptr && count > 0)
      return rueda::invalid_argument("nowhere to put the requests (NULL)");
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    RUEDA_ASSIGN_OR_RETURN(auto operations, operations_of(ops, count, with_memory));
    std::vector<std::unique_ptr<rueda_request>> handles;
    for (size_t i = 0; i < count; ++i) handles.push_back(rueda::c_abi::make_handle());
    RUEDA_ASSIGN_OR_RETURN(auto made,
                           (member->runtime.get()->*how)(std::move(operations), group != 0));
    for (size_t i = 0; i < count; ++i) {
      rueda::c_abi::fill(handles[i].get(), std::move(made[i]));
      requests[i] = handles[i].release();
    }
    return {};
  });
}

Status check(const rueda_request* request) {
  if (request == nullptr) return rueda::invalid_argument("no request (NULL)");
  return rueda::c_abi::check_process(request->process);
}

// To be started with this memory.
Status check_start(const rueda_request* request, const void* input, const void* output) {
  RUEDA_RETURN_IF_ERROR(check(request));
  const Request* const operation = request->operation;
  if (operation == nullptr) {
    return rueda::failed_precondition(request->completion->title() +
                                      ": each call is started anew, with its tensors");
  }
  if (!operation->needs_memory()) return {};
  using rueda::CollectiveKind;
  const auto kind = operation->announcement.kind;
  const auto& set = *operation->set;
  const bool is_root = set.ordered && set.place_of(operation->announcement.root) == set.place;
  const bool gathers = kind == CollectiveKind::kAllgather || kind == CollectiveKind::kAlltoall ||
                       kind == CollectiveKind::kGather;
  const bool sized = operation->announcement.output_rows >= 0;
  const bool own = kind == CollectiveKind::kReducescatter || kind == CollectiveKind::kScatter ||
                   (gathers && !sized) || (kind == CollectiveKind::kReduce && !is_root);
  const bool reads = kind != CollectiveKind::kScatter || is_root;
  if ((input == nullptr && reads) || (output == nullptr && !own))
    return rueda::invalid_argument(operation->title() + ": no input or no output");
  if (gathers && !sized && output != nullptr) {
    return rueda::invalid_argument(operation->title() +
                                   ": made without output_rows, so that its result is its own");
  }
  return {};
}

// A thread has waited for the request alone: its end, if this is one, is not news any more.
Status told(rueda_request* request, Status ended) {
  const rueda::engine::Completion& completion = *request->completion;
  if (completion.done()) request->told.store(completion.starts(), std::memory_order_relaxed);
  return ended;
}

const Request* ended_well(const rueda_request* request) {
  const bool well = request != nullptr && request->operation != nullptr &&
                    request->operation->done() && request->operation->status().ok();
  return well ? request->operation : nullptr;
}

}  // namespace

extern "C" {

int32_t rueda_start(rueda_context* context, const rueda_op* ops, size_t count, int32_t group,
                    rueda_request** requests, rueda_error* error) {
  return make(context, ops, count, group, requests, error, &rueda::engine::Runtime::start, true);
}

int32_t rueda_request_create(rueda_context* context, const rueda_op* ops, size_t count,
                             int32_t group, rueda_request** requests, rueda_error* error) {
  return make(context, ops, count, group, requests, error, &rueda::engine::Runtime::make, false);
}

int32_t rueda_run(rueda_context* context, const rueda_op* op, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    RUEDA_ASSIGN_OR_RETURN(auto operation, rueda::c_abi::convert(op));
    rueda::engine::RequestPtr request;
    return member->runtime->run(std::move(operation), kForEver, &request);
  });
}

int32_t rueda_start_and_wait(rueda_context* context, const rueda_op* op, double timeout_seconds,
                             rueda_request** request, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    if (request == nullptr) return rueda::invalid_argument("nowhere to put the request (NULL)");
    *request = nullptr;
    RUEDA_ASSIGN_OR_RETURN(const auto member, rueda::c_abi::use(context));
    RUEDA_ASSIGN_OR_RETURN(auto operation, rueda::c_abi::convert(op));
    auto handle = rueda::c_abi::make_handle();
    rueda::engine::RequestPtr started;
    Status ended = member->runtime->run(std::move(operation),
                                        rueda::c_abi::to_nanoseconds(timeout_seconds), &started);
    if (started == nullptr) return ended;
    rueda::c_abi::fill(handle.get(), std::move(started));
    *request = handle.release();
    return told(*request, std::move(ended));
  });
}

int32_t rueda_request_start(rueda_request* request, const void* input, void* output, void* stream,
                            rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check_start(request, input, output));
    return request->operation->start(static_cast<const std::byte*>(input),
                                     static_cast<std::byte*>(output),
                                     static_cast<rueda::cuda::StreamHandle>(stream));
  });
}

int32_t rueda_request_run(rueda_request* request, const void* input, void* output, void* stream,
                          double timeout_seconds, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check_start(request, input, output));
    return told(request, request->operation->run(static_cast<const std::byte*>(input),
                                                 static_cast<std::byte*>(output),
                                                 static_cast<rueda::cuda::StreamHandle>(stream),
                                                 rueda::c_abi::to_nanoseconds(timeout_seconds)));
  });
}

int32_t rueda_request_test(const rueda_request* request) {
  return request != nullptr && request->completion->done() ? 1 : 0;
}

int32_t rueda_request_wait(rueda_request* request, double timeout_seconds, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check(request));
    return told(request, request->completion->wait(rueda::c_abi::to_nanoseconds(timeout_seconds)));
  });
}

int32_t rueda_request_wait_any(rueda_request** requests, size_t count, double timeout_seconds,
                               int64_t* index, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    if (index == nullptr) return rueda::invalid_argument("nowhere to put the index (NULL)");
    *index = -1;
    if (requests == nullptr && count > 0) return rueda::invalid_argument("no requests (NULL)");
    std::vector<rueda::engine::Completion*> all;
    all.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      if (requests[i] != nullptr) RUEDA_RETURN_IF_ERROR(check(requests[i]));
      all.push_back(requests[i] == nullptr ? nullptr : requests[i]->completion.get());
    }
    const auto take = [&](size_t i) {
      const uint64_t start = all[i]->starts();
      return requests[i]->told.exchange(start, std::memory_order_acq_rel) != start;
    };
    RUEDA_ASSIGN_OR_RETURN(const auto place,
                           rueda::engine::Completion::wait_any(
                               all, rueda::c_abi::to_nanoseconds(timeout_seconds), take));
    if (!place) return {};
    *index = static_cast<int64_t>(*place);
    return all[*place]->status();
  });
}

int32_t rueda_request_on_end(rueda_request* request, void (*callback)(void* user), void* user,
                             rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check(request));
    if (callback == nullptr) return rueda::invalid_argument("no callback (NULL)");
    // It may release the request.
    const auto keep = request->completion;
    keep->on_end([callback, user] { callback(user); });
    return {};
  });
}

int32_t rueda_request_event_fd(rueda_request* request, int32_t* fd, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check(request));
    if (fd == nullptr) return rueda::invalid_argument("nowhere to put the descriptor (NULL)");
    RUEDA_ASSIGN_OR_RETURN(*fd, request->completion->event_fd());
    return {};
  });
}

int32_t rueda_request_cancel(rueda_request* request, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check(request));
    if (request->operation != nullptr) {
      return {rueda::Code::kUnimplemented,
              request->completion->title() + " cannot be taken back: other ranks may have begun"};
    }
    static_cast<rueda::attention::Call*>(request->completion.get())->abort();
    return {};
  });
}

void rueda_request_release(rueda_request* request) {
  if (request == nullptr) return;
  // What a forked child has is a copy whose threads and locks are its parent's: it is left alone.
  if (!rueda::c_abi::check_process(request->process).ok()) return;
  delete request;
}

int32_t rueda_request_output(const rueda_request* request, void** data, int64_t* shape,
                             int32_t max_ndim) {
  const Request* const ended = ended_well(request);
  if (ended == nullptr) return -1;
  const rueda::Shape& extents = ended->output_shape();
  if (data != nullptr) *data = ended->output();
  if (shape != nullptr) {
    const size_t count = std::min(extents.size(), static_cast<size_t>(std::max(max_ndim, 0)));
    std::copy_n(extents.begin(), count, shape);
  }
  return static_cast<int32_t>(extents.size());
}

int32_t rueda_request_rows(const rueda_request* request, int64_t* rows, int32_t max_count) {
  const Request* const ended = ended_well(request);
  if (ended == nullptr) return -1;
  const std::vector<int64_t>& all = ended->received_rows();
  if (rows != nullptr)
    std::copy_n(all.begin(), std::min(all.size(), static_cast<size_t>(std::max(max_count, 0))),
                rows);
  return static_cast<int32_t>(all.size());
}

int64_t rueda_request_result(const rueda_request* request) {
  const Request* const ended = ended_well(request);
  return ended == nullptr ? -1 : ended->result();
}

int32_t rueda_request_memory_released(const rueda_request* request) {
  if (request == nullptr) return 0;
  const Request* const operation = request->operation;
  return guarded_value(0, [&]() -> int32_t {
    return operation == nullptr ? rueda_request_test(request) : operation->released() ? 1 : 0;
  });
}

int32_t rueda_request_stream_wait(rueda_request* request, void* stream, rueda_error* error) {
  return guarded(error, [&]() -> Status {
    RUEDA_RETURN_IF_ERROR(check(request));
    if (request->operation == nullptr) return {};
    return request->operation->make_wait(static_cast<rueda::cuda::StreamHandle>(stream));
  });
}

}  // extern "C"
