// FixedEpochs: who answers the members of a job of fixed size when they ask to enter an epoch: the
// n-th time that a process of a place asks it is given epoch n, with the places of the start, and
// never waits. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "collectives/base/types.h"
#include "proto/messages.h"

namespace rueda::launcher {

class FixedEpochs {
 public:
  // A member's number is its rank.
  explicit FixedEpochs(size_t size) : hosts_(size) {}

  // As the job names it.
  void set_host(Rank rank, const std::string& host) { hosts_[static_cast<size_t>(rank)] = host; }

  wire::NewEpoch answer(uint64_t member, const wire::Standing& standing);
  uint64_t newest() const { return newest_; }
  std::vector<uint64_t> members() const;

 private:
  std::vector<std::string> hosts_;      // by rank
  std::map<uint64_t, uint64_t> given_;  // the last epoch of each member
  uint64_t newest_ = 0;
};

// Answers whoever waits in the store (a rendezvous::StoreServer).
template <typename Store>
void answer_entries(FixedEpochs* epochs, Store* store) {
  for (const auto& entry : store->take_entries()) {
    const uint64_t before = epochs->newest();
    const wire::NewEpoch epoch = epochs->answer(entry.member, entry.standing);
    if (epochs->newest() != before) store->begin_epoch(epochs->newest(), epochs->members());
    store->answer(entry.member, epoch);
  }
}

}  // namespace rueda::launcher
