#include "runtime/engine/request_queue.h"

#include <algorithm>
#include <utility>

#include "runtime/engine/process_set.h"

namespace rueda::engine {
namespace {

bool has_name(const Request& request) {
  return !is_point_to_point(request.announcement.kind) && !request.set->ordered;
}

// Between the two halves of a claim: it has what it needs.
bool is_claimed(const RequestPtr& request) { return !request->done(); }

}  // namespace

Status RequestQueue::claim_named(std::span<const RequestPtr> requests) {
  const auto is_numbered = [](const Request& request) {
    return request.numbered || (has_name(request) && request.announcement.name.empty());
  };
  if (std::all_of(requests.begin(), requests.end(),
                  [&](const RequestPtr& request) { return is_numbered(*request); })) {
    return {};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return *closed_;
  for (const RequestPtr& request : requests) {
    if (is_numbered(*request)) continue;
    if (has_name(*request)) request->name = entry_of(*request);
    const Status taken = request->claim();
    if (taken.ok()) continue;
    request->name.reset();
    give_back(requests, taken);
    return taken;
  }
  return {};
}

Result<std::vector<Request*>> RequestQueue::claim_numbered(std::span<const RequestPtr> requests) {
  std::vector<Request*> claimed;
  claimed.reserve(requests.size());
  if (std::all_of(requests.begin(), requests.end(), is_claimed)) {
    for (const RequestPtr& request : requests) claimed.push_back(request.get());
    return claimed;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  Status taken = closed_ ? *closed_ : Status();
  // A group is agreed on as a whole: where its first tensor has to wait, all of it does.
  if (taken.ok() && requests.front()->announcement.group_size > 0 && must_wait(*requests.front())) {
    requests.front()->behind.assign(requests.begin() + 1, requests.end());
    for (const RequestPtr& request : requests) request->restart();
    wait_for_name(requests.front());
    return claimed;
  }
  for (const RequestPtr& request : requests) {
    if (taken.ok() && !is_claimed(request)) {
      if (must_wait(*request)) continue;
      const NamePtr& name = entry_of(*request);
      request->name = name;
      taken = request->claim();
      if (!taken.ok()) request->name.reset();
    }
    claimed.push_back(request.get());
  }
  if (!taken.ok()) {
    give_back(requests, taken);
    return taken;
  }
  for (const RequestPtr& request : requests) {
    if (is_claimed(request)) continue;
    request->restart();  // under way, for who waits for it
    wait_for_name(request);
  }
  return claimed;
}

// Another waits already, or the name is in flight: in the order of submission.
bool RequestQueue::must_wait(const Request& request) {
  if (!request.numbered) return false;
  const NameTable& names = request.set->names;
  const auto known = names.names.find(request.announcement.name);
  return names.waiting.count(request.announcement.name) != 0 ||
         (known != names.names.end() && known->second->in_flight);
}

void RequestQueue::wait_for_name(const RequestPtr& request) {
  request->set->names.waiting[request->announcement.name].push_back(request);
}

void RequestQueue::give_back(std::span<const RequestPtr> requests, const Status& status) {
  for (const RequestPtr& request : requests) {
    if (!is_claimed(request)) continue;
    if (request->name != nullptr) {
      request->name->in_flight = false;
      request->name.reset();
      drop_unused(*request);
    }
    request->end(status);
  }
}

void RequestQueue::push(std::span<Request* const> requests) {
  if (requests.empty()) return;
  for (size_t i = 1; i < requests.size(); ++i) requests[i]->next_ = requests[i - 1];
  Request* head = pushed_.load(std::memory_order_relaxed);
  do {
    requests.front()->next_ = head;
  } while (!pushed_.compare_exchange_weak(head, requests.back(), std::memory_order_seq_cst,
                                          std::memory_order_relaxed));
}

Request* RequestQueue::take() {
  if (pushed_.load(std::memory_order_relaxed) == nullptr) return nullptr;
  Request* last = pushed_.exchange(nullptr, std::memory_order_acquire);
  Request* first = nullptr;
  while (last != nullptr) {
    Request* const before = last->next_;
    last->next_ = first;
    first = last;
    last = before;
  }
  return first;
}

NamePtr RequestQueue::hold(const Request& request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entry_of(request);
}

NamePtr& RequestQueue::entry_of(const Request& request) {
  NamePtr& entry = request.set->names.names[request.announcement.name];
  if (entry == nullptr) entry = std::make_shared<Name>();
  return entry;
}

void RequestQueue::drop_unused(const Request& request) {
  auto& names = request.set->names.names;
  const auto entry = names.find(request.announcement.name);
  if (entry != names.end() && entry->second.use_count() == 1) names.erase(entry);
}

void RequestQueue::release(Request* request) {
  if (request->name == nullptr) return;
  std::vector<RequestPtr> next;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    request->name->in_flight.store(false, std::memory_order_release);
    if (!request->persistent) request->name.reset();
    auto& all_waiting = request->set->names.waiting;
    const auto waiting = all_waiting.find(request->announcement.name);
    if (waiting == all_waiting.end()) {
      drop_unused(*request);  // persistent ones keep theirs
      return;
    }
    next = std::exchange(waiting->second.front()->behind, {});
    next.insert(next.begin(), std::move(waiting->second.front()));
    waiting->second.pop_front();
    if (waiting->second.empty()) all_waiting.erase(waiting);
    for (const RequestPtr& each : next) {
      each->name = entry_of(*each);
      each->name->in_flight.store(true, std::memory_order_release);
    }
  }
  std::vector<Request*> starts;
  for (const RequestPtr& each : next) {
    each->keep_itself();
    starts.push_back(each.get());
  }
  push(starts);
}

void RequestQueue::forget(Request* request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  request->name.reset();
  drop_unused(*request);
}

std::vector<RequestPtr> RequestQueue::take_waiting(ProcessSet* set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<RequestPtr> result;
  for (auto& [name, list] : set->names.waiting) {
    for (const RequestPtr& request : list) {
      result.push_back(request);
      const std::vector<RequestPtr> behind = std::exchange(request->behind, {});
      result.insert(result.end(), behind.begin(), behind.end());
    }
  }
  set->names.waiting.clear();
  return result;
}

bool RequestQueue::has_waiting(const ProcessSet& set) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !set.names.waiting.empty();
}

void RequestQueue::close(const Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_) closed_ = status;
}

Status RequestQueue::closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_ ? *closed_ : Status();
}

void RequestQueue::wake() {
  woken_.store(true, std::memory_order_release);
  ring();
}

void RequestQueue::ring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (attached_) ringer_.ring();
}

void RequestQueue::detach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  attached_ = false;
}

}  // namespace rueda::engine
