#include "tests/simulation/sim_channel.h"

#include <algorithm>

namespace rueda::testing {

void SimChannel::begin(const plan::StepPlan& plan,
                       const std::vector<const wire::Request*>& requests) {
  size_t ids = 0;
  for (const auto& batch : plan.batches) ids += batch.ids.size();
  if (requests.size() != ids) world_->fail("the plan's requests do not match its ids");
  if (plan.generation != word_.generation + 1) world_->fail("a generation was left out");
  for (Rank r = 0; r < world_->size; ++r) {
    const SimChannel& peer = doors_.peer(r);
    const bool over = peer.withdrawn_ && peer.finished_ >= *peer.withdrawn_;
    if (peer.word_.generation < plan.generation && peer.word_.generation > 0 && !over)
      world_->fail("a plan began before every rank was back from the one before");
  }
  word_ = {plan.generation, 0, false};
  calls_ = 0;
  finished_ = 0;
  withdrawn_.reset();
  tell();
}

void SimChannel::enter(std::span<const Ticket> tickets) {
  if (word_.revoked) world_->fail("entered after revoking");
  taken_.emplace_back(tickets.begin(), tickets.end());
  ++calls_;
  if (world_->one_in(2)) return publish();
  const uint64_t generation = word_.generation;
  world_->after(world_->delay(), [this, generation] {
    if (generation == word_.generation) publish();
  });
}

// The next batch becomes visible, in order.
void SimChannel::publish() {
  if (dead_ || word_.revoked || word_.entered >= calls_) return;
  world_->check(model().may_enter(rank_), "enter");
  model().enter(rank_);
  ++word_.entered;
  tell();
}

void SimChannel::revoke() {
  if (word_.revoked) return;
  world_->check(model().may_revoke(rank_), "revoke");
  model().revoke(rank_);
  word_.revoked = true;
  ++world_->revocations;
  tell();
}

void SimChannel::tell() {
  observe(rank_, word_);
  for (Rank r = 0; r < world_->size; ++r) {
    if (r == rank_) continue;
    world_->after(world_->delay(),
                  [this, r, word = word_] { doors_.peer(r).observe(rank_, word); });
  }
}

void SimChannel::observe(Rank writer, Word word) {
  if (dead_) return;
  Word& seen = seen_[static_cast<size_t>(writer)];
  const auto age = [](const Word& w) {
    return std::make_tuple(w.generation, w.entered, w.revoked);
  };
  if (age(word) <= age(seen)) return;  // overtaken by a newer one
  seen = word;
  RevocationModel& of_word = world_->model(word.generation);
  const RevocationModel::Word abstract{static_cast<int32_t>(word.entered), word.revoked};
  world_->check(of_word.may_observe(rank_, writer, abstract), "observe");
  of_word.observe(rank_, writer, abstract);
  run_next();
  doors_.poke();
}

std::optional<uint64_t> SimChannel::last_word(Rank rank) const {
  const Word& word = seen_[static_cast<size_t>(rank)];
  if (word.generation != word_.generation || !word.revoked) return std::nullopt;
  if (world_->bug != Bug::kMostInsteadOfLeast) return word.entered;
  uint64_t most = 0;  // planted: the follower's minimum of this is the maximum
  for (const Word& other : seen_) {
    if (other.generation == word_.generation) most = std::max(most, other.entered);
  }
  return most;
}

void SimChannel::run_next() {
  if (dead_ || running_ || finished_ >= word_.entered) return;
  if (withdrawn_ && finished_ >= *withdrawn_) return;
  const bool all = std::all_of(seen_.begin(), seen_.end(), [&](const Word& word) {
    return word.generation == word_.generation && word.entered > finished_;
  });
  if (!all && world_->bug != Bug::kRunBeforeAllHaveEntered) return;
  world_->check(model().may_run(rank_, Bug::kNone), "run");
  model().run(rank_);
  running_ = true;
  ++world_->planned_runs;
  std::string text;
  for (const Ticket ticket : taken_.front()) text += doors_.text(ticket) + " ";
  world_->same("batch of plan " + std::to_string(word_.generation), finished_, text);
  world_->after(world_->delay(), [this, generation = word_.generation] { end_run(generation); });
}

void SimChannel::end_run(uint64_t generation) {
  if (dead_ || generation != word_.generation || !running_) return;
  running_ = false;
  ++finished_;
  const std::vector<Ticket> ended = std::move(taken_.front());
  taken_.pop_front();
  for (const Ticket ticket : ended) doors_.end(ticket);
  run_next();
  doors_.poke();
}

std::vector<plan::Ticket> SimChannel::withdraw(uint64_t first) {
  world_->check(model().may_withdraw(rank_), "withdraw");
  world_->check(model().last_common(rank_, Bug::kNone) == static_cast<int32_t>(first),
                "withdraw from there on");
  model().withdraw(rank_, static_cast<int32_t>(first));
  withdrawn_ = first;
  std::vector<Ticket> back;
  while (calls_ > first && calls_ > finished_ + (running_ ? 1 : 0)) {
    back.insert(back.begin(), taken_.back().begin(), taken_.back().end());
    taken_.pop_back();
    --calls_;
  }
  run_next();
  return back;
}

std::vector<plan::Ticket> SimChannel::fail_all() {
  dead_ = true;
  std::vector<Ticket> all;
  for (const auto& batch : std::exchange(taken_, {}))
    all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

}  // namespace rueda::testing
