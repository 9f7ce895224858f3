// Reads a flight recorder's memory, of a live rank, a dead one, or from a file.
//
// Pure and distrustful: whatever the bytes are, it reads nothing outside of them, ends, and gives
// back texts that are UTF-8 without control characters. What was overwritten or half written
// meanwhile is left out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "runtime/observe/counters/counters.h"
#include "runtime/observe/flight/flight_layout.h"

namespace rueda::flight {

struct Operation {
  uint64_t number = 0;  // of this rank, in the order of submission; planned ones have none
  std::string name;     // "allreduce.fc1.weight"; long ones end in "..."
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  Shape shape;
  int64_t bytes = 0;
  uint32_t process_set = 0;
  Rank peer = -1;           // of a message, a rank of the job; -1: of none, or from anybody
  uint32_t generation = 0;  // of its plan
  uint64_t batch = 0;       // 0: in none yet
  State state = State::kNone;
  Path path = Path::kNegotiated;
  int64_t submitted_ns = 0, agreed_ns = 0, started_ns = 0, ended_ns = 0;
  std::string site;  // "train.py:12 in step"; "": unknown
  uint32_t thread = 0;

  bool ended() const { return state == State::kDone || state == State::kFailed; }
  std::string title() const;  // "allreduce 'fc1.weight'"
};

struct Snapshot {
  Rank rank = 0;
  Rank size = 0;
  int pid = 0;
  bool left = false;
  uint64_t epoch = 0;
  int stack_signal = 0, stack_fd = -1;
  int64_t monotonic_ns = 0, realtime_ns = 0;
  std::string host, job;
  uint64_t submitted = 0, ended = 0;  // one by one, since the start
  uint64_t planned = 0, planned_ended = 0, planned_tensors = 0;
  Rank waited_rank = 0;  // the one that its threads have waited for longest; of the job's
  int64_t waited_ms = 0;
  std::vector<Operation> operations;  // in the order in which they were submitted or entered

  const Operation* last() const { return operations.empty() ? nullptr : &operations.back(); }
};

// kDataLoss: no flight recorder's memory of this version. kFailedPrecondition: no rank has taken it
// yet.
Result<Snapshot> read_flight(ByteView memory);
// Its times on another host's clock, which is so far ahead.
void shift_times(Snapshot* snapshot, int64_t ns);
// How much later `now` is than `then`; 0 if it is not. Of any times, also those of damaged memory.
inline int64_t elapsed_ns(int64_t then, int64_t now) {
  const uint64_t gap = static_cast<uint64_t>(now) - static_cast<uint64_t>(then);
  return now <= then ? 0 : static_cast<int64_t>(std::min<uint64_t>(gap, INT64_MAX));
}
// When each operation that is under way was submitted, or its batch of a step plan was entered, in
// no order; joins are left out, which may wait for ever. As read_flight() has them, without copying
// records: it looks at the newest ones until it has seen as many as are under way. Empty for what
// is no recorder's memory of this version.
std::vector<int64_t> waiting_since(ByteView memory);
// All but how long something waits. Empty: no rank has taken this memory. Cheap.
std::optional<counters::Progress> read_progress(ByteView memory);
// How a rank does, in numbers; each is what it may be, whatever the memory says.
struct Vitals {
  Rank rank = 0, size = 0;
  int pid = 0;
  bool left = false;
  uint64_t epoch = 0;
  std::string host;
  uint64_t submitted = 0, ended = 0, planned = 0, planned_ended = 0;
  stats::Numbers stats;
};
// Empty: no rank has taken this memory. Cheap: reads the header and the stats page.
std::optional<Vitals> read_vitals(ByteView memory);
// What the mailbox of this memory says; "" for none.
std::string read_mail(ByteView memory);
// Puts a text into the mailbox, cut if longer. memory: kTotalBytes of it. One writer.
void write_mail(ByteSpan memory, const std::string& text);

}  // namespace rueda::flight
