// FirstVerdict: why init fails, said alike by all ranks.
//
// Before all have met, ranks wait for each other in chains: rank 2 for its neighbour 0, which waits
// for rank 1 on a host beyond a cut cable. Nobody shall name the neighbour. So
//   - who gives up because of another leaves the reason in the store, while its connections are
//     still open; the first one counts, and who waits looks for it;
//   - who waits for long writes down for whom, and a rank whose time is over follows these notes to
//     the pair of ranks between which the answer is missing.
//
// Threads: one. Failure: a store that is gone is no news; the own reason counts then.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "runtime/rendezvous/poll_until.h"
#include "runtime/rendezvous/store.h"
#include "runtime/rendezvous/store_client.h"

namespace rueda::membership {

class FirstVerdict {
 public:
  // prefix: of the epoch's keys, "e1/". The store is borrowed.
  FirstVerdict(rendezvous::Store* store, std::string prefix, Rank me)
      : store_(store), prefix_(std::move(prefix)), me_(me) {}

  // "rank 1 (pid 4711 on node2)" by rank, once they are known.
  void set_names(const std::vector<std::string>& names) { names_ = names; }

  // What a rank has said, naming the rank that was lost; ok when none has said anything.
  static Status said(rendezvous::Store* store, const std::string& prefix);
  // The same after init: a launcher that does not answer at once is not waited for.
  static Status said_earlier(rendezvous::StoreClient* store, const std::string& prefix);

  // While waiting for `peer`: notes it, and is an error when a rank has said why init fails.
  Status look(Rank peer);

  // What this rank must end with: what was said first, or `mine`, which is said then. Errors that
  // are not another rank's doing stay as they are.
  Status settle(const Status& mine);

 private:
  std::string name(Rank rank) const;
  std::optional<Rank> waits_for(Rank rank);
  std::string follow(const Status& mine);

  rendezvous::Store* store_;
  std::string prefix_;
  Rank me_;
  std::vector<std::string> names_;
  Rank noted_ = -1;  // for whom this rank waits, as last written down
  int notes_ = 0;
};

// store->get that looks around; kDeadlineExceeded as the store says it.
Result<std::string> get_patiently(rendezvous::Store* store, const std::string& key,
                                  const rendezvous::Patience& patience);

}  // namespace rueda::membership
