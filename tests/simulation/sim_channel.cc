#include "tests/simulation/sim_channel.h"

#include <algorithm>

namespace rueda::testing {

void SimChannel::begin(const plan::StepPlan& plan, size_t members) {
  size_t ids = 0;
  for (const auto& batch : plan.batches) ids += batch.ids.size();
  if (members != ids) world_->fail("the plan's requests do not match its ids");
  if (plan.generation != word_.generation + 1) world_->fail("a generation was left out");
  for (Rank r = 0; r < world_->size; ++r) {
    const SimChannel& peer = doors_.peer(r);
    const bool over = peer.withdrawn_ && peer.finished_ >= *peer.withdrawn_;
    if (peer.word_.generation < plan.generation && peer.word_.generation > 0 && !over)
      world_->fail("a plan began before every rank was back from the one before");
  }
  word_ = {plan.generation, 0, false};
  finished_ = 0;
  withdrawn_.reset();
  tell();
}

void SimChannel::enter(std::span<const OpHandle> handles) {
  if (dead_) return;
  world_->check(model().may_enter(rank_), "enter");
  model().enter(rank_);
  taken_.emplace_back(handles.begin(), handles.end());
  ++word_.entered;
  tell();
}

void SimChannel::revoke(uint64_t last_word) {
  if (last_word != word_.entered) world_->fail("the last word is what was entered");
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

plan::Progress SimChannel::progress() {
  for (Rank r = 0; r < world_->size; ++r) last_words_[static_cast<size_t>(r)] = last_word(r);
  const bool early = world_->bug == Bug::kBackBeforeItsBatchesEnded;  // planted
  return {early ? word_.entered : finished_, false, last_words_};
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
  for (const OpHandle handle : taken_.front()) text += doors_.text(handle) + " ";
  world_->same("batch of plan " + std::to_string(word_.generation), finished_, text);
  world_->after(world_->delay(), [this, generation = word_.generation] { end_run(generation); });
}

void SimChannel::end_run(uint64_t generation) {
  if (dead_ || generation != word_.generation || !running_) return;
  running_ = false;
  ++finished_;
  const std::vector<OpHandle> ended = std::move(taken_.front());
  taken_.pop_front();
  for (const OpHandle handle : ended) doors_.end(handle);
  run_next();
  doors_.poke();
}

std::vector<plan::OpHandle> SimChannel::withdraw(uint64_t first) {
  world_->check(model().may_withdraw(rank_, Bug::kNone), "withdraw");
  world_->check(model().last_common(rank_, Bug::kNone) == static_cast<int32_t>(first),
                "withdraw from there on");
  model().withdraw(rank_, static_cast<int32_t>(first));
  if (running_ || finished_ != first) {
    world_->fail("withdrew while a batch was to run");
    for (; finished_ < first && !taken_.empty(); ++finished_) taken_.pop_front();
  }
  withdrawn_ = first;
  return take_all();
}

std::vector<plan::OpHandle> SimChannel::take_all() {
  std::vector<OpHandle> all;
  for (const auto& batch : std::exchange(taken_, {}))
    all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

std::vector<plan::OpHandle> SimChannel::fail_all() {
  dead_ = true;
  return take_all();
}

}  // namespace rueda::testing
