// SimChannel: runs the batches of a step plan, with words that peers see late. Runs a batch when it
// has seen that every rank entered it, and holds each of its steps against the model.
#pragma once

#include <deque>
#include <functional>
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
  SimChannel(SimWorld* world, Rank rank, Doors doors)
      : world_(world),
        rank_(rank),
        doors_(std::move(doors)),
        seen_(static_cast<size_t>(world->size)),
        last_words_(static_cast<size_t>(world->size)) {}

  // ---- what a follower asks for, and what it hears
  void begin(const plan::StepPlan& plan, size_t members);
  void enter(std::span<const OpHandle> handles);
  void revoke(uint64_t last_word);
  std::vector<OpHandle> withdraw(uint64_t first);
  plan::Progress progress();
  uint64_t finished() const { return finished_; }

  bool idle() const { return taken_.empty(); }
  // The rank ends: what has not run never will.
  std::vector<OpHandle> fail_all();
  void die() { dead_ = true; }

 private:
  struct Word {
    uint64_t generation = 0;
    uint64_t entered = 0;
    bool revoked = false;
  };
  RevocationModel& model() const { return world_->model(word_.generation); }
  std::optional<uint64_t> last_word(Rank rank) const;
  void tell();
  void observe(Rank writer, Word word);
  void run_next();
  std::vector<OpHandle> take_all();
  void end_run(uint64_t generation);

  SimWorld* world_;
  Rank rank_;
  Doors doors_;
  Word word_;
  std::vector<Word> seen_;
  std::vector<std::optional<uint64_t>> last_words_;
  std::deque<std::vector<OpHandle>> taken_;  // entered, not ended; the front is number finished_
  uint64_t finished_ = 0;
  std::optional<uint64_t> withdrawn_;
  bool running_ = false;
  bool dead_ = false;
};

}  // namespace rueda::testing
