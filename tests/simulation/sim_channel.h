// SimChannel: a PlanChannel whose words become visible late. Runs a batch when it has seen that
// every rank entered it, and holds each of its steps against the model.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "runtime/plan/plan_channel.h"
#include "tests/simulation/sim_world.h"

namespace rueda::testing {

class SimChannel : public plan::PlanChannel {
 public:
  using Ticket = plan::Ticket;
  struct Doors {
    std::function<void()> poke;               // something changed: look again
    std::function<void(Ticket)> end;          // the ticket has run
    std::function<std::string(Ticket)> text;  // what the ticket is, equal on all ranks
    std::function<SimChannel&(Rank)> peer;
  };
  SimChannel(SimWorld* world, Rank rank, Doors doors)
      : world_(world),
        rank_(rank),
        doors_(std::move(doors)),
        seen_(static_cast<size_t>(world->size)) {}

  void begin(const plan::StepPlan& plan,
             const std::vector<const wire::Request*>& requests) override;
  void enter(std::span<const Ticket> tickets) override;
  uint64_t entered() const override { return word_.entered; }
  uint64_t finished() const override { return finished_; }
  void revoke() override;
  std::optional<uint64_t> last_word(Rank rank) const override;
  std::vector<Ticket> withdraw(uint64_t first) override;

  bool idle() const { return taken_.empty(); }
  // The rank ends: what has not run never will.
  std::vector<Ticket> fail_all();
  void die() { dead_ = true; }

 private:
  struct Word {
    uint64_t generation = 0;
    uint64_t entered = 0;
    bool revoked = false;
  };
  RevocationModel& model() const { return world_->model(word_.generation); }
  void publish();
  void tell();
  void observe(Rank writer, Word word);
  void run_next();
  void end_run(uint64_t generation);

  SimWorld* world_;
  Rank rank_;
  Doors doors_;
  Word word_;
  std::vector<Word> seen_;
  std::deque<std::vector<Ticket>> taken_;  // entered, not ended; the front is number finished_
  uint64_t calls_ = 0;                     // enter() calls
  uint64_t finished_ = 0;
  std::optional<uint64_t> withdrawn_;
  bool running_ = false;
  bool dead_ = false;
};

}  // namespace rueda::testing
