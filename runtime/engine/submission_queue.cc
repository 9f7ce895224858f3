#include "runtime/engine/submission_queue.h"

#include <iterator>

#include "runtime/engine/prepared.h"
#include "runtime/engine/process_set.h"

namespace rueda::engine {
namespace {

bool is_named(const Submission& submission) {
  return submission.request.kind != CollectiveKind::kSend &&
         submission.request.kind != CollectiveKind::kRecv;
}

}  // namespace

Status SubmissionQueue::submit(std::vector<Submission> submissions, bool ring) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return *closed_;
  for (size_t i = 0; i < submissions.size(); ++i) {
    if (!is_named(submissions[i])) continue;
    const NamePtr& name = entry_of(submissions[i]);
    // Another waits already, or the name is in flight: in the order of submission.
    const bool waits = submissions[i].numbered &&
                       (submissions[i].set->names.waiting.count(submissions[i].request.name) != 0 ||
                        name->in_flight);
    if (waits) continue;
    submissions[i].name = name;
    if (!name->in_flight.exchange(true, std::memory_order_acq_rel)) continue;
    for (size_t j = 0; j < i; ++j) {
      if (submissions[j].name != nullptr) submissions[j].name->in_flight = false;
    }
    return already_in_flight(*submissions[i].work);
  }
  for (Submission& submission : submissions) {
    const bool waits = is_named(submission) && submission.name == nullptr;
    if (waits) {
      std::deque<Submission>& list = submission.set->names.waiting[submission.request.name];
      list.push_back(std::move(submission));
    } else {
      incoming_.push_back(std::move(submission));
    }
  }
  filled_.store(true, std::memory_order_seq_cst);
  if (ring && attached_) ringer_.ring();
  return {};
}

std::vector<Submission> SubmissionQueue::drain() {
  std::vector<Submission> result;
  if (!filled_.load(std::memory_order_acquire)) return result;
  const std::lock_guard<std::mutex> lock(mutex_);
  result.swap(incoming_);
  filled_.store(false, std::memory_order_relaxed);
  return result;
}

void SubmissionQueue::push(Prepared* prepared) {
  Prepared* head = prepared_.load(std::memory_order_relaxed);
  do {
    prepared->next_ = head;
  } while (!prepared_.compare_exchange_weak(head, prepared, std::memory_order_seq_cst,
                                            std::memory_order_relaxed));
}

Prepared* SubmissionQueue::take() {
  if (prepared_.load(std::memory_order_relaxed) == nullptr) return nullptr;
  Prepared* last = prepared_.exchange(nullptr, std::memory_order_acquire);
  Prepared* first = nullptr;
  while (last != nullptr) {
    Prepared* const before = last->next_;
    last->next_ = first;
    first = last;
    last = before;
  }
  return first;
}

NamePtr SubmissionQueue::hold(const Submission& submission) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return entry_of(submission);
}

NamePtr& SubmissionQueue::entry_of(const Submission& submission) {
  NamePtr& entry = submission.set->names.names[submission.request.name];
  if (entry == nullptr) entry = std::make_shared<Name>();
  return entry;
}

void SubmissionQueue::drop_unused(const Submission& submission) {
  auto& names = submission.set->names.names;
  const auto entry = names.find(submission.request.name);
  if (entry != names.end() && entry->second.use_count() == 1) names.erase(entry);
}

void SubmissionQueue::release(Submission* submission) {
  if (submission->name == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  submission->name->in_flight.store(false, std::memory_order_release);
  submission->name.reset();
  auto& all_waiting = submission->set->names.waiting;
  const auto waiting = all_waiting.find(submission->request.name);
  if (waiting != all_waiting.end()) {
    Submission next = std::move(waiting->second.front());
    waiting->second.pop_front();
    if (waiting->second.empty()) all_waiting.erase(waiting);
    next.name = entry_of(next);
    next.name->in_flight.store(true, std::memory_order_release);
    incoming_.push_back(std::move(next));
    filled_.store(true, std::memory_order_seq_cst);
    return;
  }
  drop_unused(*submission);  // only prepared operations keep one not in flight
}

void SubmissionQueue::forget(Submission* submission) {
  const std::lock_guard<std::mutex> lock(mutex_);
  submission->name.reset();
  drop_unused(*submission);
}

std::vector<Submission> SubmissionQueue::take_waiting(ProcessSet* set) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Submission> result;
  for (auto& [name, list] : set->names.waiting) {
    result.insert(result.end(), std::make_move_iterator(list.begin()),
                  std::make_move_iterator(list.end()));
  }
  set->names.waiting.clear();
  return result;
}

bool SubmissionQueue::has_waiting(const ProcessSet& set) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !set.names.waiting.empty();
}

void SubmissionQueue::close(const Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_) closed_ = status;
}

Status SubmissionQueue::closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_ ? *closed_ : Status();
}

void SubmissionQueue::wake() {
  woken_.store(true, std::memory_order_release);
  ring();
}

void SubmissionQueue::ring() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (attached_) ringer_.ring();
}

void SubmissionQueue::detach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  attached_ = false;
}

}  // namespace rueda::engine
