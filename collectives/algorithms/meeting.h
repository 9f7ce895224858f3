// Meeting: that no rank ends a collective before all have begun it, where its data does not see to
// that.
//
// Data of a collective says that its sender has begun. So whoever has heard from every rank, itself
// or through others, may end. An allreduce of anything is such a meeting: each shard's owner hears
// from all, and everybody from it. Where some rank has nothing to say to another (a broadcast, an
// empty block), it says so by a message of no bytes.
#pragma once

#include "collectives/algorithms/direct.h"

namespace rueda::algorithms {

// Does this collective's data reach every rank from every rank, whoever carries it?
bool meets_by_itself(const CollectiveDesc& desc, Rank ranks);

// Of ranks that all send to each other.
class Meeting {
 public:
  // needed: else it is over at once.
  Meeting(const direct::Group& group, bool needed);
  void begin(transport::Tag call);
  // co_await gives the first failure.
  Transfers::Finished finished() { return moves_.finished(); }
  Transfers& moves() { return moves_; }

 private:
  static constexpr transport::Tag kTag = 255;  // within a call
  const direct::Group& group_;
  bool needed_;
  Transfers moves_;
};

}  // namespace rueda::algorithms
