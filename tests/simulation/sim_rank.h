// SimRank: one rank of a simulated job: the real Negotiator (and Root on rank 0), with a user's
// thread that runs a program and a coordinator that runs in turns, feeds it events and does what it
// asks for.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/negotiation/negotiator.h"
#include "tests/simulation/program.h"
#include "tests/simulation/sim_channel.h"

namespace rueda::testing {

class SimRank;

// Runs the job. "" or what went wrong.
struct SimResult {
  std::string failure;
  int64_t control_messages = 0;
  int64_t planned_runs = 0;
  int64_t revocations = 0;
  int64_t evictions = 0;
  int64_t neutrals = 0;                   // collectives in which a joined rank took part
  std::vector<int64_t> messages_by_step;  // sent by then, when the last rank had ended the step
  std::vector<std::string> notes;         // what rank 0 was told that its tensors wait for
  int64_t first_to_leave_ns = 0;
  int64_t late_data = 0;  // messages of plans, as SimWorld counts them
  int64_t early_data = 0;
  int64_t overtaken = 0;
  int broken_ranks = 0;   // that lived and gave up
  bool hit_plan = false;  // a fault came while a rank was in a plan
};
SimResult simulate(const Job& job, uint64_t seed, Bug bug = Bug::kNone);

class SimRank {
 public:
  SimRank(SimWorld* world, Rank rank, const Job* job, std::vector<std::unique_ptr<SimRank>>* all);

  void start();
  void crash();
  // The connection to that rank ends; both see it some time later. For one end of it.
  void cut(Rank peer);
  bool broken() const { return broken_; }
  void retune();
  SimChannel& channel() { return *channel_; }
  // At the end of the simulated time: "" or what is left over.
  std::string unfinished() const;
  int64_t neutrals() const { return static_cast<int64_t>(neutrals_.size()); }
  int64_t evictions() const { return negotiator_.evictions(); }
  std::vector<int64_t> messages_by_step;
  std::vector<std::string> notes;

 private:
  struct Op {
    wire::Request request;
    int step = 0;
    bool done = false;
    bool awaited = false;    // the user's thread is blocked on it
    bool may_batch = false;  // it may be held back for its batch
    Status status;
  };
  using OpHandle = plan::OpHandle;

  bool perform();
  void perform(const negotiation::action::Send& send);
  void perform(const negotiation::action::Launch& launch);
  std::string text_of(const wire::Request& request, const negotiation::SizesPtr& sizes);
  void perform(const negotiation::action::Finish& end);
  void perform(const negotiation::action::Hold& hold);
  void perform(const negotiation::action::Note& note) { notes.push_back(note.text); }
  void perform(const negotiation::action::AskSites& ask);
  void perform(const negotiation::action::GiveUp& end);
  void perform(const negotiation::action::BeginPlan& begin);
  void perform(const negotiation::action::EnterBatch& enter);
  void perform(const negotiation::action::RevokePlan& revoke);
  void perform(const negotiation::action::EndPlan& end);
  void perform(const negotiation::action::Asked&) {}
  void perform(const negotiation::action::Blame&) {}
  void perform(const negotiation::action::Warn&) {}
  void perform(const negotiation::action::Arrived&) {}
  void send(Rank to, const std::string& message);
  void finish(OpHandle handle, const Status& status) { finish(handle.as<Op>(), status); }
  void finish(Op* op, const Status& status);

  void user();
  bool user_step();
  void poke();
  void step();
  bool take_submissions();
  void take(Op* op);
  void leave_as_far_as_it_goes();
  void receive(Rank from, const std::string& message);
  void lose(Rank peer, int64_t heard_until, const std::string& why);
  void give_up(const Status& verdict);
  bool lives() const { return !dead_ && !ended_ && !broken_; }
  Op* newest(const std::string& name);
  void check_status(const Op& op);

  SimWorld* world_;
  Rank rank_;
  const Job* job_;
  std::vector<std::unique_ptr<SimRank>>* all_;
  std::unique_ptr<SimChannel> channel_;
  negotiation::Negotiator negotiator_;

  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<std::unique_ptr<Op>> neutrals_;  // while this rank has joined
  std::deque<Op*> queue_;
  std::deque<std::pair<Rank, std::string>> inbox_;  // "" is goodbye
  std::vector<bool> goodbye_;                       // by peer: it has said so
  std::vector<std::vector<Op*>> running_;           // negotiated batches
  std::vector<negotiation::RequestPtr> planned_;    // of the plan in force, by member
  uint64_t entered_ = 0;                            // members, in that plan
  uint64_t launches_ = 0;
  uint64_t joins_ = 0;
  size_t running_count_ = 0;
  size_t cursor_ = 0;
  int current_step_ = 0;
  bool poked_ = false;
  bool user_scheduled_ = false;
  bool thinking_ = false;
  bool woken_ = false;
  bool blocked_already_ = false;
  bool closed_ = false;  // the user has asked to leave
  bool leaving_ = false;
  bool ended_ = false;
  bool dead_ = false;
  bool broken_ = false;
  Status verdict_;
  std::optional<Status> given_up_;
};

}  // namespace rueda::testing
