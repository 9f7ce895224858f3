// What a decode is run over: the memory and the work of one rank. On the CPU both are done when
// they say so. On a GPU they are given to a stream, as the messages are, and the host waits for
// neither.
#pragma once

#include "attention/decode.h"
#include "collectives/base/status.h"

namespace rueda::attention {

// Memory of a call (decode_shares.h says how long).
enum class DecodeSlot {
  kQueries,  // of all sequences, where ranks have their own
  kPartial,  // partial results of all rows over the keys that are here
  kCame,     // those of this rank's rows, of each other rank, in their order
  kResults,  // of each rank, or of this one alone
};
constexpr int kDecodeSlots = 4;

enum class DecodeStep {
  kPlaceQueries,  // this rank's among kQueries
  kAttend,        // kQueries, or q, over the keys that are here: kPartial
  kMerge,         // kPartial's own rows and kCame, and the sinks: this rank's kResults
  kPut,           // kResults to out and lse
};

class DecodeWork {
 public:
  virtual ~DecodeWork() = default;
  // Until the call has ended. Each slot once.
  virtual Result<std::byte*> take(DecodeSlot slot, int64_t bytes) = 0;
  virtual Status perform(DecodeStep step) = 0;
};

// A spec that was checked. Errors name the exchange and the peer.
Status decode(const DecodeSpec& spec, Link* link, DecodeWork* work);

}  // namespace rueda::attention
