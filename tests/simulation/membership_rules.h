// What must hold of every decision about the next epoch, whoever decided it: the model's decider or
// the real one. It is told the truth about members, not what they say.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace rueda::testing {

struct DecidedMember {
  bool survivor = false;   // was in the epoch before
  bool is_source = false;  // the decision says that it holds the target
  bool has_state = false;  // whole, and agreed on by all members of an epoch
  uint64_t commits = 0;    // in that state
};

struct DecidedEpoch {
  uint64_t last_number = 0;      // of the epoch before, and
  uint64_t newest_told = 0;      // the newest that any member has been told of
  uint64_t number = 0;           // of this one
  uint64_t target = 0;           // the commit from which all go on
  uint64_t acknowledged = 0;     // commits that somebody outside has been told of
  bool fresh = false;            // rank 0 gives its state, whatever it is
  bool fresh_memory = false;     // members move to memory that nobody else has
  bool others_write = false;     // a thread of a lost member may still write into theirs
  bool awaits_somebody = false;  // of the epoch before: not lost, and has not left it
};

// "" or the rule that is broken. `member(rank)` -> DecidedMember.
template <typename MemberOf>
const char* broken_rule(const DecidedEpoch& epoch, size_t size, const MemberOf& member) {
  if (epoch.number <= epoch.last_number || epoch.number <= epoch.newest_told)
    return "an epoch's number was given again";
  if (size == 0) return "nobody is in an epoch";
  if (epoch.awaits_somebody) return "an epoch began while a member trained in the one before";
  if (epoch.others_write && !epoch.fresh_memory)
    return "a lost rank may write into memory that is in use";
  if (epoch.target < epoch.acknowledged) return "an acknowledged commit is lost";
  uint64_t newest = 0;
  bool survives = false;
  bool state_survives = false;
  for (size_t rank = 0; rank < size; ++rank) {
    const DecidedMember at = member(rank);
    survives |= at.survivor;
    if (at.survivor && at.has_state) newest = std::max(newest, at.commits), state_survives = true;
    if (!at.is_source) continue;
    if (epoch.fresh) return "there is a source, and all begin anew";
    if (!at.has_state) return "a source has no verified state";
    if (at.commits != epoch.target) return "a source does not hold the target";
  }
  const DecidedMember first = member(0);
  if (survives && !first.survivor) return "rank 0 is a newcomer";
  if (state_survives && epoch.fresh) return "there is a state, and all begin anew";
  if (state_survives && epoch.target < newest) return "the newest commit of a survivor is lost";
  if (!epoch.fresh && !first.is_source) return "rank 0 has not the newest commit";
  return "";
}

}  // namespace rueda::testing
