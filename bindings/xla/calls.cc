#include "bindings/xla/calls.h"

#include <thread>
#include <utility>

namespace rueda::xla {
namespace {

// One of its members has ended. By one thread only.
void member_ended(Joint& joint, int32_t code, const rueda_error& error) {
  if (joint.code == RUEDA_OK && code != RUEDA_OK) {
    joint.code = code;
    joint.error = error;
  }
  if (--joint.left > 0) return;
  if (joint.code == RUEDA_OK) {
    XLA_FFI_Future_SetAvailable_Args args = {XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, nullptr,
                                             joint.future};
    joint.api->XLA_FFI_Future_SetAvailable(&args);
  } else {
    XLA_FFI_Future_SetError_Args args = {XLA_FFI_Future_SetError_Args_STRUCT_SIZE, nullptr,
                                         joint.future,
                                         make_error(joint.api, joint.code, joint.error.message)};
    joint.api->XLA_FFI_Future_SetError(&args);
  }
}

// What was lowered has this rank's shapes and place in it.
bool is_of(rueda_context* context, const Joint& joint, Call* call) {
  const int32_t rank = rueda_rank(context);
  const int32_t size = rueda_size(context);
  if (rank < 0) return true;  // not in a job: rueda_start says that
  if (rank == joint.rank && size == joint.size) return true;
  const auto of = [](int32_t a, int32_t b) {
    return "rank " + std::to_string(a) + " of " + std::to_string(b);
  };
  const std::string text = "'" + call->name + "': this program was lowered for " +
                           of(joint.rank, joint.size) + ", and this process is " + of(rank, size) +
                           " now: lower it again";
  call->error.message[text.copy(call->error.message, sizeof call->error.message - 1)] = 0;
  return false;
}

}  // namespace

XLA_FFI_Error* make_error(const XLA_FFI_Api* api, int32_t code, const char* message) {
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message,
                                    static_cast<XLA_FFI_Error_Code>(code)};  // both are gRPC's
  return api->XLA_FFI_Error_Create(&args);
}

// Never destroyed: its thread may outlive the destructors of a process that ends.
Calls& Calls::instance() {
  static auto* calls = new Calls;
  return *calls;
}

void Calls::use(rueda_context* context) {
  rueda_context* previous = context == nullptr ? nullptr : rueda_context_retain(context);
  {
    std::lock_guard lock(mutex_);
    std::swap(previous, context_);
  }
  rueda_context_release(previous);
}

void Calls::submit(std::unique_ptr<Call> call) {
  Call* given = call.release();
  {
    std::lock_guard lock(mutex_);
    if (!has_thread_) {
      std::thread([this] { complete_for_ever(); }).detach();
      has_thread_ = true;
    }
    given->context = context_ == nullptr ? nullptr : rueda_context_retain(context_);
    const auto [place, is_first] = by_name_.try_emplace(given->name);
    if (!is_first) {
      place->second.push_back(given);
      return;
    }
  }
  start(given);
}

bool Calls::is_any_under_way() {
  std::lock_guard lock(mutex_);
  return !by_name_.empty();
}

void Calls::start(Call* call) {
  rueda_context* context = std::exchange(call->context, nullptr);
  const size_t count = call->ops.size();
  call->requests.resize(count);
  call->under_way = count;
  if (!is_of(context, *call->joint, call)) {
    call->code = RUEDA_FAILED_PRECONDITION;
  } else {
    call->code = rueda_start(context, call->ops.data(), count, count > 1 ? 1 : 0,
                             call->requests.data(), &call->error);
  }
  rueda_context_release(context);
  if (call->code != RUEDA_OK) {
    call->requests.clear();
    end(call);
    return;
  }
  // After the last of them the call may be gone.
  const std::vector<rueda_request*> requests = call->requests;
  for (rueda_request* each : requests) {
    const auto ended = [](void* user) { instance().one_ended(static_cast<Call*>(user)); };
    if (rueda_request_on_end(each, ended, call, nullptr) == RUEDA_OK) continue;
    // Out of memory. Its buffers are the runtime's until it has ended all the same.
    rueda_request_wait(each, -1, nullptr);
    one_ended(call);
  }
}

void Calls::one_ended(Call* call) {
  {
    std::lock_guard lock(mutex_);
    if (--call->under_way > 0) return;
  }
  end(call);
}

void Calls::end(Call* call) {
  {
    std::lock_guard lock(mutex_);
    ended_.push_back(call);
  }
  one_more_.notify_one();
}

void Calls::complete_for_ever() {
  for (;;) {
    std::unique_ptr<Call> call;
    {
      std::unique_lock lock(mutex_);
      one_more_.wait(lock, [this] { return !ended_.empty(); });
      call.reset(ended_.front());
      ended_.pop_front();
    }
    for (rueda_request* each : call->requests) {
      rueda_error error = RUEDA_ERROR_INIT;
      const int32_t code = rueda_request_wait(each, 0, &error);
      if (call->code == RUEDA_OK && code != RUEDA_OK) {
        call->code = code;
        call->error = error;
      }
      rueda_request_release(each);
    }
    Call* next = nullptr;
    {
      std::lock_guard lock(mutex_);
      const auto place = by_name_.find(call->name);
      if (place->second.empty()) {
        by_name_.erase(place);
      } else {
        next = place->second.front();
        place->second.pop_front();
      }
    }
    if (next != nullptr) start(next);
    member_ended(*call->joint, call->code, call->error);
  }
}

}  // namespace rueda::xla
