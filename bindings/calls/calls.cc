#include "bindings/calls/calls.h"

#include <thread>
#include <utility>

namespace rueda::calls {

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

rueda_context* Calls::context() {
  std::lock_guard lock(mutex_);
  return context_ == nullptr ? nullptr : rueda_context_retain(context_);
}

void Calls::submit(std::unique_ptr<Call> call) {
  Call* given = call.release();
  {
    std::lock_guard lock(mutex_);
    if (!has_thread_) {
      std::thread([this] { complete_for_ever(); }).detach();
      has_thread_ = true;
    }
    ++under_way_;
    given->context_ = context_ == nullptr ? nullptr : rueda_context_retain(context_);
    if (!given->queue.empty()) {
      const auto [place, is_first] = queues_.try_emplace(given->queue);
      if (!is_first) {
        place->second.push_back(given);
        return;
      }
    }
  }
  start(given);
}

bool Calls::is_any_under_way() {
  std::lock_guard lock(mutex_);
  return under_way_ > 0;
}

void Calls::start(Call* call) {
  rueda_context* context = std::exchange(call->context_, nullptr);
  const size_t count = call->ops.size();
  call->requests.resize(count);
  call->under_way_ = count;
  if (call->may_start(context)) {
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
    if (--call->under_way_ > 0) return;
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

// Who goes on in its place; nullptr: nobody.
Call* Calls::leave_queue(const std::string& queue) {
  std::lock_guard lock(mutex_);
  --under_way_;
  if (queue.empty()) return nullptr;
  const auto place = queues_.find(queue);
  if (place->second.empty()) {
    queues_.erase(place);
    return nullptr;
  }
  Call* next = place->second.front();
  place->second.pop_front();
  return next;
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
    }
    if (Call* next = leave_queue(call->queue)) start(next);
    call->complete();
    for (rueda_request* each : call->requests) rueda_request_release(each);
  }
}

}  // namespace rueda::calls
