// ReadinessTable: which ranks have submitted which tensor. Kept by the root rank; pure, time comes
// from outside.
//
// A tensor is decided when every rank has submitted it (ready, or an error if they disagree), or
// when a rank that has not submitted it leaves (an error). Decided tensors are forgotten. A rank
// that has joined is not waited for, until all have.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/negotiation/agreement.h"
#include "runtime/negotiation/events.h"
#include "runtime/negotiation/members.h"
#include "runtime/negotiation/sizes.h"

namespace rueda::negotiation {

// A tensor that all ranks have submitted, or that cannot be.
struct Decision {
  std::vector<RequestPtr> by_rank;  // null: that rank had not submitted it
  Status status;                    // not ok: every rank that waits gets this
  std::vector<Rank> absent;         // ok: those that had joined instead
  std::optional<CacheId> id;        // under which all others have submitted it
  Time before{};                    // when the last rank but one had submitted it
  bool disagreement = false;        // the status comes from check_agreement
  bool of_group = false;            // the status is another's of its group, and names that one
  const RequestPtr& first() const;  // of the first rank that had
  const wire::Request& request() const { return *first(); }
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
  // strict: nobody stands in for who has joined but in allreduce and barrier
  // (RUEDA_HOROVOD_STRICT).
  explicit ReadinessTable(Members members, bool strict = false);

  // Empty: not decided yet. id: the request came as this; what it means has been agreed on before.
  std::optional<Decision> add(Rank rank, RequestPtr request, Time now,
                              std::optional<CacheId> id = {});
  // The rank submits no more. Everything that waits for it is decided with an error that names it.
  std::vector<Decision> leave(Rank rank);
  // The rank has joined. What waited for it alone is decided.
  std::vector<Decision> join(Rank rank);
  void end_join();  // of all
  bool has_joined(Rank rank) const { return joined_[static_cast<size_t>(rank)]; }
  bool anyone_has_joined() const { return joined_count_ > 0; }
  // Something waits since now.
  void refresh(const std::string& name, Time now);
  bool has_left(Rank rank) const { return left_[static_cast<size_t>(rank)]; }

  // Fails one tensor that waits (a stall that lasts too long); empty when it is not there.
  std::optional<Decision> fail(const std::string& name, const Status& status);
  // Takes back what ranks have submitted of these requests (they belong to a step plan now). True
  // if nothing of that name waits any more.
  bool withdraw(const Requests& requests);
  std::vector<Waiting> waiting() const;
  // check_agreement of those that have submitted it; sites: by member.
  Status agreement_of(const Decision& decision, const std::vector<std::string>& sites = {}) const;
  bool empty() const { return entries_.empty(); }
  // Tensors that wait and that some rank has submitted in this grouped call, by name.
  std::vector<std::string> members_of(const std::string& group) const;
  // Has this rank submitted a tensor that is not decided yet?
  bool submitted(Rank rank, const std::string& name) const;

 private:
  struct Entry {
    std::vector<RequestPtr> by_rank;
    size_t count = 0;
    std::optional<CacheId> id;  // of all so far
    Time since;
    Time latest;
  };
  Status missing_rank(const std::string& name, Rank rank) const;
  bool is_complete(const std::string& name, const Entry& entry) const;
  Decision decide(Entry entry) const;
  Status agreement_of_present(const Decision& decision,
                              const std::vector<std::string>& sites) const;
  Status check_absent(const wire::Request& request, const std::vector<Rank>& absent) const;

  Members members_;
  std::vector<bool> left_;
  std::vector<bool> joined_;
  size_t joined_count_ = 0;
  bool strict_ = false;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace rueda::negotiation
