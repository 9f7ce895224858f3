// What the agreement asks its owner to do, in order. Messages to one rank arrive in the order of
// their sending.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "runtime/negotiation/agreement.h"
#include "runtime/negotiation/events.h"
#include "runtime/negotiation/sizes.h"
#include "runtime/plan/step_plan.h"

namespace rueda::negotiation {
namespace action {

struct Send {
  static constexpr Rank kEveryone = -1;  // but this rank
  Rank to = 0;
  std::string message;
};

// A member of a batch: this rank's operation, or, if it has joined, a neutral contribution that the
// owner makes of the request.
struct Member {
  OpHandle handle;
  RequestPtr neutral;  // null: the handle's
};
// Run this batch after those launched before; members[i] and sizes[i] belong to batch.entries[i]. A
// join has ended when it is launched.
struct Launch {
  wire::Response batch;
  std::vector<Member> members;
  std::vector<SizesPtr> sizes;
};

// The operation ends without having run.
struct Finish {
  OpHandle handle;
  Status status;
};

// It is negotiated, by its cache id or with its whole request.
struct Asked {
  OpHandle handle;
  bool by_id = false;
};
// It may be held back for its batch. The owner says Awaited as soon as a thread waits for it, at
// once if one does already. Either way Flush comes after everything that this thread submitted
// before, or the batch looks as if it would never be complete.
struct Hold {
  OpHandle handle;
};
// What it waits for, as a text for people; the owner adds what the launcher knows.
struct Note {
  OpHandle handle;
  std::string text;
};

// Something ends because of another rank; before any operation hears of it.
struct Blame {
  std::string text;
  bool has_left = true;  // that one has left in order; else it is late
};
// For the log of the root rank.
struct Warn {
  std::string text;
};
// Ranks disagree: where were these called? To be answered with Sites, soon.
struct AskSites {
  struct Question {
    std::string name;
    OpHandle handle;
  };
  std::vector<Question> questions;
};
// The root hears that a rank has submitted a tensor.
struct Arrived {
  RequestPtr request;
  Rank rank = 0;
  bool last = false;  // all have; the one before had come at `before`
  Time before;
  Time now;
};

// The agreement is damaged beyond repair: end everything, answer with BreakDown. Nothing follows.
struct GiveUp {
  Status verdict;
};

// A plan is in force. All ranks have ended the generation before. requests: this rank's, of its
// members, batch by batch; sizes: likewise.
struct BeginPlan {
  plan::StepPlan plan;
  std::vector<RequestPtr> requests;
  std::vector<SizesPtr> sizes;
};
using plan::EndPlan;
using plan::EnterBatch;
using plan::RevokePlan;

}  // namespace action

using Action = std::variant<action::EnterBatch, action::Send, action::Launch, action::Finish,
                            action::Asked, action::Hold, action::Note, action::Blame, action::Warn,
                            action::AskSites, action::Arrived, action::GiveUp, action::BeginPlan,
                            action::RevokePlan, action::EndPlan>;
using Actions = std::vector<Action>;

}  // namespace rueda::negotiation
