// ReadinessTable: which ranks have submitted which tensor. Kept by the root rank; pure, time comes
// from outside.
//
// A tensor is decided when every rank has submitted it (ready, or an error if they disagree), or
// when a rank that has not submitted it leaves (an error). Decided tensors are forgotten.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/negotiation/agreement.h"

namespace rueda::negotiation {

using Time = std::chrono::steady_clock::time_point;

// A tensor that all ranks have submitted, or that cannot be.
struct Decision {
  std::vector<RequestPtr> by_rank;  // null: that rank had not submitted it
  Status status;                    // not ok: every rank that waits gets this
  std::chrono::steady_clock::time_point before{};  // when the last rank but one had submitted it
  const wire::Request& request() const;
};

// A tensor that is still waiting, for the stall report.
struct Waiting {
  std::string name;
  Time since;  // first submission
  std::vector<Rank> ready;
  std::vector<Rank> missing;
};

class ReadinessTable {
 public:
  explicit ReadinessTable(std::vector<std::string> rank_names);

  // Empty: not decided yet.
  std::optional<Decision> add(Rank rank, RequestPtr request, Time now);
  // The rank submits no more. Everything that waits for it is decided with an error that names it.
  std::vector<Decision> leave(Rank rank);
  bool has_left(Rank rank) const { return left_[static_cast<size_t>(rank)]; }

  // Fails one tensor that waits (a stall that lasts too long); empty when it is not there.
  std::optional<Decision> fail(const std::string& name, const Status& status);
  // Takes back every rank's submission that equals this request (it belongs to a step plan now).
  // True if nothing of that name waits any more.
  bool withdraw(const RequestPtr& request);
  std::vector<Waiting> waiting() const;
  bool empty() const { return entries_.empty(); }
  // Tensors that wait and that some rank has submitted in this grouped call, by name.
  std::vector<std::string> members_of(const std::string& group) const;
  // Has this rank submitted a tensor that is not decided yet?
  bool submitted(Rank rank, const std::string& name) const;

 private:
  struct Entry {
    std::vector<RequestPtr> by_rank;
    size_t count = 0;
    Time since;
    Time latest;
  };
  Status missing_rank(const std::string& name, Rank rank) const;

  std::vector<std::string> rank_names_;
  std::vector<bool> left_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace rueda::negotiation
