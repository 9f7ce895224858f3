#include "runtime/submission_queue.h"

#include <iterator>

namespace rueda::runtime {
namespace {

bool is_named(const Submission& submission) {
  return submission.request.kind != CollectiveKind::kSend &&
         submission.request.kind != CollectiveKind::kRecv;
}

}  // namespace

Status SubmissionQueue::submit(std::vector<Submission> submissions) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return *closed_;
  for (size_t i = 0; i < submissions.size(); ++i) {
    if (!is_named(submissions[i]) || in_flight_.insert(submissions[i].request.name).second)
      continue;
    for (size_t j = 0; j < i; ++j) {
      if (is_named(submissions[j])) in_flight_.erase(submissions[j].request.name);
    }
    return {Code::kAlreadyExists,
            submissions[i].work->title() +
                ": submitted with the same name as another tensor that is still in flight on this "
                "rank; wait for it first, or give each its own name"};
  }
  incoming_.insert(incoming_.end(), std::make_move_iterator(submissions.begin()),
                   std::make_move_iterator(submissions.end()));
  filled_.store(true, std::memory_order_release);
  ringer_.ring();
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

void SubmissionQueue::release(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_flight_.erase(name);
}

void SubmissionQueue::close(const Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!closed_) closed_ = status;
}

void SubmissionQueue::wake() {
  woken_.store(true, std::memory_order_release);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (attached_) ringer_.ring();
}

void SubmissionQueue::detach() {
  const std::lock_guard<std::mutex> lock(mutex_);
  attached_ = false;
}

}  // namespace rueda::runtime
