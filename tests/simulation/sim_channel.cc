#include "tests/simulation/sim_channel.h"

#include <algorithm>

namespace rueda::testing {

SimChannel::SimChannel(SimWorld* world, Rank rank, Doors doors)
    : world_(world),
      rank_(rank),
      doors_(std::move(doors)),
      heard_(static_cast<size_t>(world->size)),
      told_(static_cast<size_t>(world->size)),
      last_words_(static_cast<size_t>(world->size)) {}

void SimChannel::begin(const plan::StepPlan& plan, size_t members) {
  size_t ids = 0;
  for (const auto& batch : plan.batches) ids += batch.ids.size();
  if (members != ids) world_->fail("the plan's requests do not match its ids");
  if (plan.generation != generation_ + 1) world_->fail("a generation was left out");
  for (Rank r = 0; r < world_->size; ++r) {
    const SimChannel& peer = doors_.peer(r);
    const bool over = peer.withdrawn_ && peer.finished_ >= *peer.withdrawn_;
    if (peer.generation_ < plan.generation && peer.generation_ > 0 && !over)
      world_->fail("a plan began before every rank was back from the one before");
  }
  generation_ = plan.generation;
  std::fill(heard_.begin(), heard_.end(), 0);
  begun_ = finished_ = 0;
  withdrawn_.reset();
  on_begin();
}

void SimChannel::enter(std::span<const OpHandle> handles) {
  if (dead_) return;
  world_->check(model().may_enter(rank_), "enter");
  model().enter(rank_);
  taken_.push_back({{handles.begin(), handles.end()}});
  ++heard_[static_cast<size_t>(rank_)];
  say_entered();
  run_what_may();
}

void SimChannel::revoke(uint64_t last_word) {
  if (last_word != entered()) world_->fail("the last word is what was entered");
  world_->check(model().may_revoke(rank_), "revoke");
  model().revoke(rank_);
  ++world_->revocations;
  told_[static_cast<size_t>(rank_)] = {generation_, last_word};
  say_last_word();
  doors_.poke();
}

void SimChannel::hear_entered(Rank writer, uint64_t batches) {
  uint64_t& heard = heard_[static_cast<size_t>(writer)];
  if (batches <= heard) return;
  heard = batches;
  const auto count = static_cast<int64_t>(batches);
  world_->check(model().may_hear(rank_, writer, count), "hear");
  model().hear(rank_, writer, count);
  run_what_may();
  doors_.poke();
}

void SimChannel::hear_last_word(Rank writer, LastWord word) {
  // Nobody leaves a generation before it has heard all of its last words.
  if (word.generation < generation_) return world_->fail("a last word came late");
  told_[static_cast<size_t>(writer)] = word;
  SimWorld::Model& of_word = world_->model(word.generation);
  const auto count = static_cast<int64_t>(word.entered);
  world_->check(of_word.may_hear_last(rank_, writer, count), "hear a last word");
  of_word.hear_last(rank_, writer, count);
  run_what_may();
  doors_.poke();
}

plan::Progress SimChannel::progress() {
  const Bug bug = world_->bug;
  uint64_t most = 0;
  for (const uint64_t batches : heard_) most = std::max(most, batches);
  for (size_t r = 0; r < told_.size(); ++r) {
    last_words_[r].reset();
    const bool is_old = bug == Bug::kOldLastWordCounts && told_[r].generation > 0;
    if (told_[r].generation != generation_ && !is_old) continue;
    // The follower's minimum of this is the maximum.
    last_words_[r] = bug == Bug::kMostInsteadOfLeast ? most : told_[r].entered;
  }
  const bool early = bug == Bug::kBackBeforeItsBatchesEnded;
  return {early ? entered() : finished_, false, last_words_};
}

bool SimChannel::may_run(uint64_t number) const {
  if (dead_ || number >= entered() || (withdrawn_ && number >= *withdrawn_)) return false;
  if (world_->bug == Bug::kRunBeforeAllHaveEntered) return true;
  for (size_t r = 0; r < heard_.size(); ++r) {
    const bool from_word = world_->bug == Bug::kRunOnLastWordAlone &&
                           told_[r].generation == generation_ && told_[r].entered > number;
    if (heard_[r] <= number && !from_word) return false;
  }
  return true;
}

std::string SimChannel::text_of(uint64_t number) const {
  std::string text;
  for (const OpHandle handle : taken_[number - finished_].handles)
    text += doors_.text(handle) + " ";
  return text;
}

// Several may be under way; they end in their order.
void SimChannel::run_what_may() {
  for (; may_run(begun_); ++begun_) {
    world_->check(model().may_run(rank_, Bug::kNone), "run");
    model().run(rank_);
    ++world_->planned_runs;
    const std::string text = text_of(begun_);
    world_->same("batch of plan " + std::to_string(generation_), begun_, text);
    check_data(begun_, text);
    world_->after(world_->delay(), [this, generation = generation_, number = begun_] {
      end_run(generation, number);
    });
  }
}

void SimChannel::end_run(uint64_t generation, uint64_t number) {
  if (dead_ || generation != generation_ || number >= finished_ + taken_.size()) return;
  taken_[number - finished_].has_run = true;
  while (!taken_.empty() && taken_.front().has_run) {
    const Batch ended = std::move(taken_.front());
    taken_.pop_front();
    ++finished_;
    for (const OpHandle handle : ended.handles) doors_.end(handle);
  }
  doors_.poke();
}

std::vector<plan::OpHandle> SimChannel::withdraw(uint64_t first) {
  world_->check(model().may_withdraw(rank_, Bug::kNone), "withdraw");
  world_->check(model().first_lost(rank_, Bug::kNone) == static_cast<int64_t>(first),
                "withdraw from there on");
  model().withdraw(rank_, static_cast<int64_t>(first));
  if (begun_ != finished_ || finished_ != first) {
    world_->fail("withdrew while a batch was to run");
    for (; finished_ < first && !taken_.empty(); ++finished_) taken_.pop_front();
  }
  withdrawn_ = first;
  return take_all();
}

std::vector<plan::OpHandle> SimChannel::take_all() {
  std::vector<OpHandle> all;
  for (const Batch& batch : std::exchange(taken_, {}))
    all.insert(all.end(), batch.handles.begin(), batch.handles.end());
  return all;
}

std::vector<plan::OpHandle> SimChannel::fail_all() {
  dead_ = true;
  return take_all();
}

}  // namespace rueda::testing
