// ArrivalWatch: hears for whom a channel waits. Called from Channel::progress(), only when that
// changes.
#pragma once

#include "collectives/base/types.h"

namespace rueda::shm {

class ArrivalWatch {
 public:
  // The next operation cannot begin: this rank of the group, at least, has not posted it. again: it
  // had been posted here before the one that was waited for last could begin.
  virtual void missing(Rank rank, bool again) = 0;
  // Now it can.
  virtual void complete() = 0;

 protected:
  ~ArrivalWatch() = default;
};

}  // namespace rueda::shm
