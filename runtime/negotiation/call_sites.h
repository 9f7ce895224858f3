// CallSites: before ranks are told that they disagree, the root asks each where it called, so that
// the error names a line of the program for every side. Costs one exchange, and only then.
//
//   ask(about) ---> take_questions() ---ResponseList::where---> ranks
//                   on_answer()      <--RequestList::call_sites-- ranks
//                   take_answered(): about, and the sites
//
// Who does not answer within kPatience (it is stopped, or swapped out) has no site. Pure; one
// thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/negotiation/kind_conflicts.h"
#include "runtime/negotiation/readiness_table.h"

namespace rueda::negotiation {

class CallSites {
 public:
  static constexpr std::chrono::milliseconds kPatience{1000};

  using Sites = std::vector<std::vector<std::string>>;  // by name, by place of the member
  // What is told when they have answered.
  using About = std::variant<Decision, KindConflicts::Conflict>;

  // senders: of each name, those that have submitted it and wait.
  void ask(std::vector<std::string> names, const std::vector<std::vector<Rank>>& senders,
           size_t members, Time now, About about);
  // Names that the ranks have not been asked for yet.
  std::vector<std::string> take_questions();
  // What nobody has asked for is ignored.
  void on_answer(Rank place, const wire::CallSite& site);
  // A rank leaves: it is told nothing after that, so all that is known is told at once.
  void close();

  struct Answered {
    About about;
    Sites sites;
  };
  // Somebody has been asked, or is to be, and it is not told yet.
  bool asking() const { return !questions_.empty(); }
  // In the order of asking.
  std::vector<Answered> take_answered(Time now);
  std::optional<Time> next_deadline() const;

 private:
  struct Question {
    std::vector<std::string> names;
    std::vector<std::vector<bool>> awaited;  // by name, by place
    size_t left = 0;                         // of these
    Time until;
    Answered answered;
  };
  std::vector<Question> questions_;
  std::vector<std::string> unasked_;
};

}  // namespace rueda::negotiation
