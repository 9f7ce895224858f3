// ArrivalWatch: hears for whom a channel waits, in operations that are watched. Called from
// Channel::progress(), only when that changes.
#pragma once

#include "collectives/base/types.h"

namespace rueda::shm {

class ArrivalWatch {
 public:
  // The next operation cannot begin: this rank of the group, at least, has not posted it.
  virtual void missing(Rank rank) = 0;
  // Now it can.
  virtual void complete() = 0;

 protected:
  ~ArrivalWatch() = default;
};

}  // namespace rueda::shm
