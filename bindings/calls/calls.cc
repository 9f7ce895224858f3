#include "bindings/calls/calls.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace rueda::calls {
namespace {

// So many continuations of a framework may wait at the same time.
constexpr size_t kMostThreads = 256;

}  // namespace

std::string member_name(const std::string& name, size_t i) {
  return i == 0 ? name : name + "[" + std::to_string(i) + "]";
}

int32_t Call::begin(rueda_context* context, double patience) {
  const size_t count = ops.size();
  requests.resize(count);
  if (patience == 0 || count != 1)
    return rueda_start(context, ops.data(), count, count > 1 ? 1 : 0, requests.data(), &error);
  const int32_t ended =
      rueda_start_and_wait(context, ops.data(), patience, requests.data(), &error);
  return requests[0] == nullptr ? ended : RUEDA_OK;  // how it ended is asked for later
}

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

// Whether it may start now; otherwise it waits behind others of its queue.
bool Calls::take_place(Call* call) {
  std::lock_guard lock(mutex_);
  have_one_ready();
  ++under_way_;
  call->context_ = context_ == nullptr ? nullptr : rueda_context_retain(context_);
  if (call->queue.empty()) return true;
  const auto [place, is_first] = queues_.try_emplace(call->queue);
  if (!is_first) place->second.push_back(call);
  return is_first;
}

void Calls::submit(std::unique_ptr<Call> call) {
  Call* given = call.release();
  if (take_place(given)) start_and_await(given);
}

void Calls::submit(std::vector<std::unique_ptr<Call>> calls, double patience) {
  std::vector<Call*> started;
  const double alone = calls.size() == 1 ? patience : 0;  // else others are to be started, too
  for (auto& each : calls) {
    Call* call = each.release();
    if (take_place(call) && start(call, alone)) started.push_back(call);
  }
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(patience - alone);
  for (Call* call : started) {
    const auto has_ended = [until](rueda_request* each) {
      const std::chrono::duration<double> left = until - Clock::now();
      if (left.count() > 0) rueda_request_wait(each, left.count(), nullptr);
      return rueda_request_test(each) == 1;
    };
    if (std::all_of(call->requests.begin(), call->requests.end(), has_ended))
      complete(std::unique_ptr<Call>(call));
    else
      await(call);
  }
}

bool Calls::is_any_under_way() {
  std::lock_guard lock(mutex_);
  return under_way_ > 0;
}

// False: it could not, and has ended.
bool Calls::start(Call* call, double patience) {
  rueda_context* context = std::exchange(call->context_, nullptr);
  if (call->may_start(context)) call->code = call->begin(context, patience);
  rueda_context_release(context);
  if (call->code == RUEDA_OK) return true;
  call->requests.clear();
  end(call);
  return false;
}

void Calls::start_and_await(Call* call) {
  if (start(call, 0)) await(call);
}

// It goes on when the last of its operations tells that it has ended.
void Calls::await(Call* call) {
  // After the last of them the call may be gone.
  const std::vector<rueda_request*> requests = call->requests;
  call->under_way_ = requests.size();
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
  if (getpid() != process_) {  // forked: its threads have stayed behind, and it starts nothing
    complete(std::unique_ptr<Call>(call));
    return;
  }
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

void Calls::complete(std::unique_ptr<Call> call) {
  for (rueda_request* each : call->requests) {
    rueda_error error = RUEDA_ERROR_INIT;
    const int32_t code = rueda_request_wait(each, 0, &error);
    if (call->code == RUEDA_OK && code != RUEDA_OK) {
      call->code = code;
      call->error = error;
    }
  }
  if (Call* next = leave_queue(call->queue)) start_and_await(next);
  call->complete();
  for (rueda_request* each : call->requests) rueda_request_release(each);
}

// With the mutex held.
void Calls::have_one_ready() {
  if (ready_ > 0 || threads_ == kMostThreads) return;
  std::thread([this] { complete_for_ever(); }).detach();
  ++threads_;
  ++ready_;
}

void Calls::complete_for_ever() {
  for (;;) {
    std::unique_ptr<Call> call;
    {
      std::unique_lock lock(mutex_);
      one_more_.wait(lock, [this] { return !ended_.empty(); });
      call.reset(ended_.front());
      ended_.pop_front();
      --ready_;
      have_one_ready();
    }
    complete(std::move(call));
    std::lock_guard lock(mutex_);
    ++ready_;
  }
}

}  // namespace rueda::calls
