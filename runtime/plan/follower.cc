#include "runtime/plan/follower.h"

#include <algorithm>

#include "collectives/base/check.h"

namespace rueda::plan {

void Follower::begin(StepPlan plan, const std::vector<const wire::Request*>& requests, Time now) {
  RUEDA_CHECK(!following(), "one step plan at a time");
  channel_->begin(plan, requests);
  plan_ = std::move(plan);
  state_ = State::kFollowing;
  batches_.clear();
  ids_.clear();
  batch_of_.clear();
  id_of_.clear();
  member_of_.clear();
  for (const plan::PlannedBatch& batch : plan_.batches) {
    batches_.push_back({ids_.size(), batch.ids.size(), batch.ids.size()});
    for (const CacheId id : batch.ids) {
      if (id >= member_of_.size()) member_of_.resize(id + 1, kNo);
      id_of_[requests[ids_.size()]->name] = id;
      ids_.push_back(id);
      batch_of_.push_back(static_cast<uint32_t>(batches_.size() - 1));
    }
  }
  next_.assign(ids_.size(), 0);
  // Backwards twice: the second time round every member knows its successor in the cycle.
  for (size_t i = 2 * ids_.size(); i > 0; --i) {
    const size_t member = (i - 1) % ids_.size();
    uint32_t& of_id = member_of_[ids_[member]];
    next_[member] = of_id == kNo ? static_cast<uint32_t>(member) : of_id;
    of_id = static_cast<uint32_t>(member);
  }
  tickets_.assign(ids_.size(), nullptr);
  entered_ = 0;
  cursor_ = 0;
  held_ = 0;
  finished_ = 0;
  moved_ = now;
  why_.clear();
}

std::optional<CacheId> Follower::id_of(const std::string& name) const {
  const auto it = id_of_.find(name);
  if (!following() || it == id_of_.end()) return std::nullopt;
  return it->second;
}

bool Follower::submit(CacheId id, Ticket ticket, Time now) {
  const uint32_t member = member_of_[id];
  member_of_[id] = next_[member];
  tickets_[member] = ticket;
  ++held_;
  moved_ = now;
  const uint32_t batch = batch_of_[member];
  if (--batches_[batch].missing > 0 || batch != cursor_ || revoked()) return false;
  enter_complete();
  return true;
}

bool Follower::holds(CacheId id) const {
  if (!has(id)) return false;
  uint32_t member = member_of_[id];
  do {  // over the id's places in the cycle, mostly one
    if (tickets_[member] != nullptr) return true;
    member = next_[member];
  } while (member != member_of_[id]);
  return false;
}

void Follower::enter_complete() {
  while (state_ == State::kFollowing && batches_[cursor_].missing == 0) {
    Batch& batch = batches_[cursor_];
    channel_->enter(std::span<const Ticket>(tickets_).subspan(batch.first, batch.size));
    for (size_t i = 0; i < batch.size; ++i) tickets_[batch.first + i] = nullptr;
    batch.missing = batch.size;
    held_ -= batch.size;
    ++entered_;
    cursor_ = cursor_ + 1 == batches_.size() ? 0 : cursor_ + 1;
  }
}

void Follower::revoke(const std::string& why) {
  if (state_ != State::kFollowing) return;
  why_ = why;
  channel_->revoke();
  state_ = State::kLeaving;
}

std::optional<uint64_t> Follower::last_words() const {
  uint64_t least = UINT64_MAX;
  for (Rank rank = 0; rank < size_; ++rank) {
    const std::optional<uint64_t> word = channel_->last_word(rank);
    if (!word) return std::nullopt;
    least = std::min(least, *word);
  }
  return least;
}

void Follower::withdraw() {
  const std::vector<Ticket> tickets = channel_->withdraw(first_lost_);
  size_t next = 0;
  for (uint64_t n = first_lost_; n < entered_; ++n) {
    const Batch& batch = batches_[n % batches_.size()];
    for (size_t i = 0; i < batch.size && next < tickets.size(); ++i)
      back_.push_back({ids_[batch.first + i], tickets[next++]});
  }
  RUEDA_CHECK(next == tickets.size(), "the channel gives back what it has taken");
}

bool Follower::poll(Time now) {
  if (state_ == State::kNone) return false;
  if (state_ == State::kFollowing) {
    for (Rank rank = 0; rank < size_; ++rank) {
      if (channel_->last_word(rank)) revoke("rank " + std::to_string(rank) + " left the plan");
    }
    const uint64_t finished = channel_->finished();
    if (finished != finished_ || (held_ == 0 && finished == entered_) || channel_->starting())
      moved_ = now;
    finished_ = finished;
    if (now - moved_ >= patience_) revoke("it stood still");
  }
  if (state_ == State::kLeaving) {
    const std::optional<uint64_t> least = last_words();
    if (!least) return false;
    first_lost_ = *least;
    withdraw();
    state_ = State::kFinishing;
  }
  if (state_ != State::kFinishing || channel_->finished() < first_lost_) return false;
  state_ = State::kNone;
  for (size_t i = 0; i < tickets_.size(); ++i) {
    // In the plan's order from the first batch that was not entered on.
    const size_t member = (batches_[cursor_].first + i) % tickets_.size();
    if (tickets_[member] != nullptr) back_.push_back({ids_[member], tickets_[member]});
    tickets_[member] = nullptr;
  }
  held_ = 0;
  return true;
}

std::optional<Time> Follower::next_deadline() const {
  // What the channel says now, not what the last poll saw: who leaves a wait asks this, and would
  // wake the background thread for nothing.
  if (state_ != State::kFollowing || (held_ == 0 && channel_->finished() == entered_))
    return std::nullopt;
  return moved_ + patience_;
}

std::vector<Follower::Member> Follower::take_back() { return std::exchange(back_, {}); }

std::vector<Follower::Member> Follower::drop() {
  for (size_t i = 0; i < tickets_.size(); ++i) {
    if (tickets_[i] != nullptr) back_.push_back({ids_[i], tickets_[i]});
    tickets_[i] = nullptr;
  }
  state_ = State::kNone;
  return take_back();
}

}  // namespace rueda::plan
