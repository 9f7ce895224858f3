#include "runtime/plan/follower.h"

#include <algorithm>

#include "collectives/base/check.h"

namespace rueda::plan {

void Follower::begin(StepPlan plan, const std::vector<Place>& places, Time now) {
  RUEDA_CHECK(!following(), "one step plan at a time");
  plan_ = std::move(plan);
  state_ = State::kFollowing;
  batches_.clear();
  ids_.clear();
  batch_of_.clear();
  ids_of_.clear();
  member_of_.clear();
  for (const PlannedBatch& batch : plan_.batches) {
    batches_.push_back({ids_.size(), batch.ids.size(), batch.ids.size()});
    for (size_t i = 0; i < batch.ids.size(); ++i) {
      const Place& place = places[ids_.size()];
      std::vector<RequestId>& of_name = ids_of_[place.name];
      if (std::find(of_name.begin(), of_name.end(), place.id) == of_name.end())
        of_name.push_back(place.id);
      ids_.push_back(place.id);
      batch_of_.push_back(static_cast<uint32_t>(batches_.size() - 1));
    }
  }
  next_.assign(ids_.size(), 0);
  // Backwards twice: the second time round every member knows its successor in the cycle.
  for (size_t i = 2 * ids_.size(); i > 0; --i) {
    const auto member = static_cast<uint32_t>((i - 1) % ids_.size());
    const auto [of_id, is_last] = member_of_.try_emplace(ids_[member], member);
    next_[member] = of_id->second;
    of_id->second = member;
  }
  handles_.assign(ids_.size(), {});
  held_here_.assign(ids_.size(), false);
  entered_ = 0;
  cursor_ = 0;
  held_ = 0;
  finished_ = 0;
  moved_ = now;
  why_.clear();
}

std::optional<RequestId> Follower::held_of(const std::string& name) const {
  const auto of_name = ids_of_.find(name);
  if (of_name == ids_of_.end()) return std::nullopt;
  const auto held = std::find_if(of_name->second.begin(), of_name->second.end(),
                                 [this](RequestId id) { return holds(id); });
  if (held == of_name->second.end()) return std::nullopt;
  return *held;
}

Follower::Taken Follower::on_ready(RequestId id, OpHandle handle, Time now) {
  if (!following()) return Taken::kNo;
  const auto next = member_of_.find(id);
  if (next == member_of_.end()) return Taken::kNo;
  const uint32_t member = std::exchange(next->second, next_[next->second]);
  handles_[member] = handle;
  held_here_[member] = true;
  ++held_;
  moved_ = now;
  const uint32_t batch = batch_of_[member];
  if (--batches_[batch].missing > 0 || batch != cursor_ || revoked()) return Taken::kHeld;
  enter_complete();
  return Taken::kEntered;
}

bool Follower::holds(RequestId id) const {
  if (!has(id)) return false;
  const uint32_t first = member_of_.at(id);
  uint32_t member = first;
  do {  // over the request's places in the cycle, mostly one
    if (held_here_[member]) return true;
    member = next_[member];
  } while (member != first);
  return false;
}

void Follower::enter_complete() {
  while (batches_[cursor_].missing == 0) {
    Batch& batch = batches_[cursor_];
    actions_.emplace_back(
        EnterBatch{std::span<const OpHandle>(handles_).subspan(batch.first, batch.size)});
    for (size_t i = 0; i < batch.size; ++i) held_here_[batch.first + i] = false;
    batch.missing = batch.size;
    held_ -= batch.size;
    ++entered_;
    cursor_ = cursor_ + 1 == batches_.size() ? 0 : cursor_ + 1;
  }
}

void Follower::revoke(const std::string& why) {
  if (state_ != State::kFollowing) return;
  why_ = why;
  actions_.emplace_back(RevokePlan{entered_});
  state_ = State::kLeaving;
}

// Of all ranks' last words, once they are there.
std::optional<uint64_t> Follower::least(const Progress& progress) const {
  uint64_t least = UINT64_MAX;
  for (const std::optional<uint64_t>& word : progress.last_words) {
    if (!word) return std::nullopt;
    least = std::min(least, *word);
  }
  return least;
}

void Follower::on_progress(const Progress& progress, Time now) {
  if (state_ == State::kNone) return;
  RUEDA_CHECK(progress.last_words.size() == static_cast<size_t>(size_), "one word for each rank");
  if (state_ == State::kFollowing) {
    for (Rank rank = 0; rank < size_; ++rank) {
      if (progress.last_words[static_cast<size_t>(rank)])
        revoke("rank " + std::to_string(rank) + " left the plan");
    }
    if (progress.finished != finished_ || (held_ == 0 && progress.finished == entered_) ||
        progress.starting) {
      moved_ = now;
    }
    finished_ = progress.finished;
    if (now - moved_ >= patience_) revoke("it stood still");
  }
  if (state_ == State::kLeaving) {
    const std::optional<uint64_t> first = least(progress);
    if (!first) return;
    first_lost_ = *first;
    state_ = State::kFinishing;
  }
  if (state_ != State::kFinishing || progress.finished < first_lost_) return;
  state_ = State::kWithdrawing;
  actions_.emplace_back(EndPlan{first_lost_});
}

void Follower::on_withdrawn(std::span<const OpHandle> handles) {
  if (state_ != State::kWithdrawing) return;
  size_t next = 0;
  for (uint64_t n = first_lost_; n < entered_; ++n) {
    const Batch& batch = batches_[n % batches_.size()];
    for (size_t i = 0; i < batch.size && next < handles.size(); ++i)
      back_.push_back({ids_[batch.first + i], handles[next++]});
  }
  RUEDA_CHECK(next == handles.size(), "what comes back was entered");
  give_back_held(batches_[cursor_].first);
}

// In the plan's order from this member on. The plan is over.
void Follower::give_back_held(size_t from) {
  for (size_t i = 0; i < handles_.size(); ++i) {
    const size_t member = (from + i) % handles_.size();
    if (held_here_[member]) back_.push_back({ids_[member], handles_[member]});
    held_here_[member] = false;
  }
  held_ = 0;
  state_ = State::kNone;
}

std::optional<Time> Follower::next_deadline(uint64_t finished) const {
  // What has finished now, not what the last look saw: who leaves a wait asks this, and would wake
  // the background thread for nothing.
  if (state_ != State::kFollowing || (held_ == 0 && finished == entered_)) return std::nullopt;
  return moved_ + patience_;
}

std::vector<Follower::Member> Follower::take_back() { return std::exchange(back_, {}); }

std::vector<Follower::Member> Follower::drop() {
  if (following()) give_back_held(0);
  return take_back();
}

}  // namespace rueda::plan
