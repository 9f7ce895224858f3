// Submission: one operation with its memory, checked and ready to be agreed on.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "collectives/base/types.h"
#include "collectives/cuda/device.h"
#include "proto/messages.h"
#include "runtime/engine/work.h"

namespace rueda::engine {

class Prepared;
struct ProcessSet;

// A name on this rank. Shared by the table of names and whoever uses it.
struct Name {
  std::atomic<bool> in_flight{false};
};
using NamePtr = std::shared_ptr<Name>;

struct Submission {
  std::shared_ptr<ProcessSet> set;
  wire::Request request;  // what the ranks must agree on; name is "<kind>.<name>"
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  // null: the work owns the result
  int device = -1;           // of in and out: -1 the host, else a GPU of this process
  cuda::Mark ready;          // GPU: in and out may be used behind it
  Rank peer = 0;             // send, recv
  uint32_t tag = 0;
  uint32_t tag_space = 0;  // see Operation
  uint16_t agreed = 0;
  std::shared_ptr<Work> work;
  uint32_t site = 0;                     // FlightRecorder::site
  uint64_t flight = 0;                   // its record in the flight recorder; 0: none yet
  bool numbered = false;                 // unnamed: may wait for its number to be free
  NamePtr name;                          // null: matched otherwise (send, recv)
  std::shared_ptr<const Prepared> keep;  // stays until this ends
  std::shared_ptr<std::byte[]> own;      // a neutral contribution's memory
  std::chrono::steady_clock::time_point submitted{};  // while somebody records
};

// A submission that waits for its response.
struct Pending {
  Submission submission;
  std::chrono::steady_clock::time_point since{};
  Prepared* prepared = nullptr;   // whose own this is; null: used once
  std::optional<uint32_t> label;  // in the timeline
};

}  // namespace rueda::engine
