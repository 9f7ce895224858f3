// Communicator: the collectives over one process set's ranks.
//
// Threads:   one at a time, who holds the progress lock.
// Order:     every rank starts the same collectives in the same order; several may be under way at
//            once. Those of a step plan have a communicator of their own, so the two orders do not
//            meet.
// Failure:   a collective that fails because of a peer leaves the communicator unusable: abandon()
//            it.
// End:       abandon() drops what is under way; afterwards no caller memory is touched by this
//            rank.
#pragma once

#include <cstdint>
#include <memory>

#include "collectives/base/status.h"
#include "collectives/desc/collective.h"

namespace rueda {

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual Rank rank() const = 0;
  virtual Rank size() const = 0;

  // Prepares a collective. It is alike on all ranks whether that is refused (kUnimplemented,
  // kInvalidArgument).
  virtual Result<std::unique_ptr<Collective>> init(CollectiveDesc desc) = 0;

  // Moves what does not need a collective's attention. True if anything moved.
  virtual bool progress() = 0;
  virtual void abandon() = 0;

  // ---- step plans
  // What is started from here on belongs to this generation; all ranks have finished everything
  // before it.
  virtual void begin_generation(uint64_t /*generation*/) {}
  // The generation is over here. Its collectives that had begun have ended or are destroyed; of the
  // latter, which some rank has never started, nothing arrives any more.
  virtual void end_generation() {}
};

}  // namespace rueda
