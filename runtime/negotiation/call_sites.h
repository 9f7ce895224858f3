// CallSites: before ranks are told that they disagree, the root asks each where it called, so that
// the error names a line of the program for every side. Costs one exchange, and only then.
//
//   ask() ---> take_questions() --ResponseList::where--> ranks --RequestList::call_sites--> on_answer()
//                                                  take_answered() ---> then(sites)
//
// Who does not answer within kPatience (it is stopped, or swapped out) has no site. Pure; one
// thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/negotiation/readiness_table.h"

namespace rueda::negotiation {

class CallSites {
 public:
  static constexpr std::chrono::milliseconds kPatience{1000};

  using Sites = std::vector<std::vector<std::string>>;  // by name, by place of the member
  using Then = std::function<void(const Sites& sites, Time now)>;

  // senders: of each name, those that have submitted it and wait. then: called by who takes it.
  void ask(std::vector<std::string> names, const std::vector<std::vector<Rank>>& senders,
           size_t members, Time now, Then then);
  // Names that the ranks have not been asked for yet.
  std::vector<std::string> take_questions();
  // What nobody has asked for is ignored.
  void on_answer(Rank place, const wire::CallSite& site);
  // A rank leaves: it is told nothing after that, so all that is known is told at once.
  void close();

  struct Answered {
    Sites sites;
    Then then;
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
