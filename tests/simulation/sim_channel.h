// SimChannel: runs the batches of a step plan. Runs a batch when it has heard that every rank
// entered it, and holds each of its steps against the model. How ranks hear of each other is what
// its two kinds differ in: words in memory (sim_words.h), messages between hosts (sim_messages.h).
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/plan/step_plan.h"
#include "tests/simulation/sim_world.h"

namespace rueda::testing {

class SimChannel {
 public:
  using OpHandle = plan::OpHandle;
  struct Doors {
    std::function<void()> poke;                 // something changed: look again
    std::function<void(OpHandle)> end;          // the operation has run
    std::function<std::string(OpHandle)> text;  // what it is, equal on all ranks
    std::function<SimChannel&(Rank)> peer;
  };
  SimChannel(SimWorld* world, Rank rank, Doors doors);
  virtual ~SimChannel() = default;
  SimChannel(const SimChannel&) = delete;
  SimChannel& operator=(const SimChannel&) = delete;

  // ---- what a follower asks for, and what it hears
  void begin(const plan::StepPlan& plan, size_t members);
  void enter(std::span<const OpHandle> handles);
  void revoke(uint64_t last_word);
  std::vector<OpHandle> withdraw(uint64_t first);
  plan::Progress progress();
  uint64_t finished() const { return finished_; }

  bool idle() const { return taken_.empty(); }
  // In a plan that it has not left.
  bool in_plan() const { return generation_ > 0 && !withdrawn_ && !dead_; }
  // The rank ends: what has not run never will.
  std::vector<OpHandle> fail_all();
  void die() { dead_ = true; }

 protected:
  struct LastWord {
    uint64_t generation = 0;
    uint64_t entered = 0;
  };

  // This rank has entered a batch, or will enter no more.
  virtual void say_entered() = 0;
  virtual void say_last_word() = 0;
  // A generation has begun: what has come of it before is heard now.
  virtual void on_begin() = 0;
  // A batch runs: are these its data?
  virtual void check_data(uint64_t /*number*/, const std::string& /*text*/) {}

  // Of the generation in force: so many batches were entered by that rank.
  void hear_entered(Rank writer, uint64_t batches);
  // Of any generation.
  void hear_last_word(Rank writer, LastWord word);

  uint64_t heard(Rank writer) const { return heard_[static_cast<size_t>(writer)]; }
  uint64_t entered() const { return heard(rank_); }
  LastWord told(Rank writer) const { return told_[static_cast<size_t>(writer)]; }
  uint64_t generation() const { return generation_; }
  // Members of a batch that has not ended here.
  std::string text_of(uint64_t number) const;

  SimWorld* const world_;
  const Rank rank_;
  const Doors doors_;
  bool dead_ = false;

 private:
  struct Batch {
    std::vector<OpHandle> handles;
    bool has_run = false;
  };
  SimWorld::Model& model() const { return world_->model(generation_); }
  bool may_run(uint64_t number) const;
  void run_what_may();
  void end_run(uint64_t generation, uint64_t number);
  std::vector<OpHandle> take_all();

  uint64_t generation_ = 0;
  std::vector<uint64_t> heard_;  // batches entered, by rank
  std::vector<LastWord> told_;   // by rank
  std::vector<std::optional<uint64_t>> last_words_;
  std::deque<Batch> taken_;  // entered, not ended; the front is number finished_
  uint64_t begun_ = 0;       // batches that run or have run
  uint64_t finished_ = 0;
  std::optional<uint64_t> withdrawn_;
};

}  // namespace rueda::testing
