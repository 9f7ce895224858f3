// The flight recorders' memory on the launcher's side: made before a rank starts, held while it
// runs and after it was killed, and written to files for `rueda explain`.
//
// A file is the memory as it was, then a few lines that the agent knows: the time, what became of
// the process, its stacks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/unique_fd.h"
#include "launcher/observe/flight_explain.h"
#include "runtime/observe/flight/flight_reader.h"

namespace rueda::launcher {

// One rank's. Owns the descriptor and the mapping; movable.
class FlightMemory {
 public:
  static Result<FlightMemory> make();
  FlightMemory(FlightMemory&& other) noexcept;
  FlightMemory& operator=(FlightMemory&&) = delete;
  ~FlightMemory();

  int fd() const { return fd_.get(); }
  ByteSpan bytes() const { return {base_, flight::kTotalBytes}; }

 private:
  FlightMemory(UniqueFd fd, std::byte* base) : fd_(std::move(fd)), base_(base) {}
  UniqueFd fd_;
  std::byte* base_;
};

// "flight.rank3.bin"
std::string flight_file_name(Rank rank);
// Writes one rank's file into a folder, which is made if need be; what was there is replaced whole.
// now_ns: on our clock; shift_ns: how far that is ahead of the rank's.
Status write_flight_file(const std::string& folder, const RankRecord& record, ByteView memory,
                         int64_t now_ns, int64_t shift_ns = 0);

struct FlightFiles {
  std::vector<RankRecord> ranks;  // by rank
  int64_t now_ns = 0;             // when the last was written
  std::vector<std::string> problems;
};
// kNotFound: there are none in this folder. Files that cannot be read are problems.
Result<FlightFiles> read_flight_files(const std::string& folder);
// One file's bytes. Pure.
Result<RankRecord> parse_flight_file(ByteView bytes, int64_t* now_ns);

}  // namespace rueda::launcher
