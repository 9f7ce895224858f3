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

void Calls::start(Call* call) {
  rueda_context* now = context();
  const size_t count = call->ops.size();
  call->requests.resize(count);
  call->under_way_ = count;
  call->code = rueda_start(now, call->ops.data(), count, count > 1 ? 1 : 0, call->requests.data(),
                           &call->error);
  rueda_context_release(now);
  if (call->code != RUEDA_OK) {
    call->requests.clear();
    end(call);
    return;
  }
  // After the last of them the call may be gone.
  const std::vector<rueda_request*> requests = call->requests;
  for (rueda_request* each : requests) {
    rueda_request_on_end(
        each, [](void* user) { instance().one_ended(static_cast<Call*>(user)); }, call, nullptr);
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

Call* Calls::next_in_queue(const std::string& queue) {
  if (queue.empty()) return nullptr;
  std::lock_guard lock(mutex_);
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
    Call* call;
    {
      std::unique_lock lock(mutex_);
      one_more_.wait(lock, [this] { return !ended_.empty(); });
      call = ended_.front();
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
    if (Call* next = next_in_queue(call->queue)) start(next);
    call->complete();
    for (rueda_request* each : call->requests) rueda_request_release(each);
    delete call;
  }
}

}  // namespace rueda::calls
