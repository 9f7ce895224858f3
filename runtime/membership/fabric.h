// Fabric: this rank's connections to the others, and what it sleeps in and is woken by.
//
// Ownership: owns all but the words that others ring: those lie in the arenas of this host's ranks,
//            so HostMemory outlives it.
// Threads:   doorbell, loop and transport: who holds the progress lock. Ringers: any.
// End:       whoever destroys it drops all connections at once; TagTransport::say_goodbye and
//            flushed() come before where a rank leaves in order.
#pragma once

#include <memory>
#include <vector>

#include "collectives/host/doorbell.h"
#include "collectives/host/event_loop.h"
#include "collectives/transport/tag_transport.h"
#include "runtime/membership/clock_offset.h"

namespace rueda::host {
class Arena;
}

namespace rueda::membership {

// Members are destroyed from last to first: the transport before what it borrows.
struct Fabric {
  std::unique_ptr<host::SleepWord> private_word;  // the doorbell's where there is no own arena
  std::shared_ptr<void> keep_alive;  // what the words of `ringers` lie in, if not arenas
  std::unique_ptr<host::Doorbell> doorbell;
  std::vector<host::Ringer> ringers;  // by rank; of no use where memory is not shared
  std::unique_ptr<host::EventLoop> loop;
  std::unique_ptr<transport::TagTransport> transport;
  ClockOffset clock;  // to rank 0's

  // Makes doorbell and loop. arena: this rank's own; null where no memory is shared.
  Status open(host::Arena* arena);
};

}  // namespace rueda::membership
