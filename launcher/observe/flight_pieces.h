// A flight recorder's memory in pieces, as they go from host to host: only what was written, and of
// a running job only what was last and what waits. Put together again they are a memory that
// flight_reader.h reads, with the rest left out.
#pragma once

#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "runtime/observe/flight/flight_layout.h"

namespace rueda::launcher {

struct FlightPiece {
  uint64_t offset = 0;
  std::string bytes;
};

// memory: of a live rank, too; records that change meanwhile are left out. Empty: nothing recorded.
// kVitals: the header and the stats page, what flight::read_vitals needs. kRecent: with what was
// last and what waits, some tens of KiB, more if much waits. kWhole: at most flight::kTotalBytes.
enum class Detail { kVitals, kRecent, kWhole };
std::vector<FlightPiece> flight_pieces(ByteView memory, Detail detail);

// Memory to put pieces into; zero, and costs nothing, where none is. Movable.
class FlightMirror {
 public:
  static Result<FlightMirror> make();
  FlightMirror(FlightMirror&& other) noexcept;
  FlightMirror& operator=(FlightMirror&&) = delete;
  ~FlightMirror();

  // kDataLoss: it does not fit in a recorder's memory.
  Status put(const FlightPiece& piece);
  ByteView bytes() const { return {base_, flight::kTotalBytes}; }

 private:
  explicit FlightMirror(std::byte* base) : base_(base) {}
  std::byte* base_;
};

}  // namespace rueda::launcher
