// The flight recorder's memory: what a rank did last, readable by others while it runs and after it
// was killed. One memory file per rank, written by the rank, held by its agent too.
//
//   0         Header      who writes; counters that only grow
//   4096      Mailbox     what the agent wants this rank to say (an explanation of a hang)
//   ...       Site[]      where operations are called from, "train.py:12 in step"; number n is
//                         entry n - 1
//   ...       Record[]    the last kRecords operations that were submitted one by one, a ring
//   ...       Record[]    members of step plans, as they were when their plan began, a ring
//   ...       PlanEntry[] the last kPlanEntries batches of step plans, a ring
//   ...       stats::Page what the process has done so far, through all epochs
//
// All fields are written as single words, so that a reader sees each whole; a Record is whole when
// its stamp is the same before and after it was read. Times are CLOCK_MONOTONIC in nanoseconds, 0:
// not yet. Bytes are those of the machine; a reader refuses another version, size or byte order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/observe/stats/stats_page.h"

namespace rueda::flight {

inline constexpr uint64_t kMagic = 0x31544c4641445552;  // "RUDAFLT1"
inline constexpr uint32_t kVersion = 4;
inline constexpr size_t kRecords = 4096;
inline constexpr size_t kTemplates = 2048;
inline constexpr size_t kPlanEntries = 4096;
inline constexpr size_t kSites = 1024;
inline constexpr size_t kMaxDims = 6;
inline constexpr size_t kNameBytes = 120;
inline constexpr size_t kSiteBytes = 124;
inline constexpr size_t kMailBytes = 4064;

enum class State : uint8_t {
  kNone = 0,
  kSubmitted = 1,
  kAgreed = 2,
  kStarted = 3,
  kDone = 4,
  kFailed = 5
};
enum class Path : uint8_t { kNegotiated = 0, kCached = 1, kPlanned = 2, kDirect = 3 };

struct Header {
  uint64_t magic;
  uint32_t version;
  uint32_t header_bytes;
  uint64_t total_bytes;
  uint64_t layout;  // hash of all sizes
  int32_t rank;
  int32_t size;
  int32_t pid;           // 0: no rank has taken this memory yet
  int32_t stack_signal;  // asks the rank for its stacks; 0: not possible
  int32_t stack_fd;      // of the rank: the file that they go to
  int32_t left;          // 1: the rank has left the job in order
  uint64_t epoch;
  int64_t monotonic_ns;  // the same moment on two clocks
  int64_t realtime_ns;
  uint64_t submitted;  // records written so far
  uint64_t ended;      // of these
  uint64_t planned;    // batches of step plans entered so far
  uint64_t planned_ended;
  uint64_t planned_tensors;
  uint64_t templates;  // written so far
  uint64_t sites;
  // The rank that this one's threads have waited for longest, << kWaitedShift | milliseconds; 0:
  // none.
  uint64_t waited;
  char host[64];
  char job[64];
};

struct Mailbox {
  uint64_t stamp;  // grows with each text; odd: being written
  uint64_t length;
  char text[kMailBytes];
};

struct Site {
  uint32_t length;
  char text[kSiteBytes];
};

struct Record {
  uint64_t stamp;  // its number + 1; 0: being written
  int64_t submitted_ns;
  int64_t agreed_ns;
  int64_t started_ns;
  int64_t ended_ns;
  uint64_t batch;  // of its process set (and plan), from 1; 0: none yet
  int64_t bytes;   // of this rank's tensor
  uint32_t process_set;
  uint32_t site;  // 0: unknown
  uint32_t thread;
  uint32_t epoch;
  uint8_t kind;  // CollectiveKind
  uint8_t dtype;
  uint8_t reduce_op;
  uint8_t ndim;         // may be more than kMaxDims
  int32_t peer;         // of a message, + 1; 0: of no message, or from anybody
  uint32_t generation;  // of its step plan; 0: none
  uint8_t path;
  uint8_t state;
  uint8_t unused2[2];
  int64_t shape[kMaxDims];
  char name[kNameBytes];  // "allreduce.fc1.weight"; a longer one as short_name() makes it
};

// One batch of a step plan.
struct PlanEntry {
  uint64_t members;  // first template's number << 16 | how many
  uint64_t when;     // entered at, << 1 | has ended
  uint64_t number;   // of the batch in its plan, from 1
};

// Of Record::process_set: an ordered group, by a hash of its key and ranks.
inline constexpr uint32_t kGroupBit = uint32_t{1} << 31;
inline constexpr size_t kWord = sizeof(uint64_t);
inline constexpr int kWaitedShift = 40;
static_assert(sizeof(Header) <= 4096 && sizeof(Header) % kWord == 0);
static_assert(sizeof(Mailbox) <= 4096);
static_assert(sizeof(Site) == 128 && sizeof(Record) == 256 && sizeof(PlanEntry) == 24);

inline constexpr size_t kMailOffset = 4096;
inline constexpr size_t kSitesOffset = kMailOffset + 4096;
inline constexpr size_t kRecordsOffset = kSitesOffset + kSites * sizeof(Site);
inline constexpr size_t kTemplatesOffset = kRecordsOffset + kRecords * sizeof(Record);
inline constexpr size_t kPlanOffset = kTemplatesOffset + kTemplates * sizeof(Record);
inline constexpr size_t kStatsOffset = kPlanOffset + kPlanEntries * sizeof(PlanEntry);
inline constexpr size_t kTotalBytes = kStatsOffset + sizeof(stats::Page);
static_assert(kStatsOffset % 64 == 0);

constexpr uint64_t layout_hash() {
  uint64_t hash = 0xcbf29ce484222325;
  for (const uint64_t value :
       {uint64_t{sizeof(Header)}, uint64_t{offsetof(Header, submitted)}, uint64_t{sizeof(Record)},
        uint64_t{offsetof(Record, kind)}, uint64_t{offsetof(Record, peer)},
        uint64_t{offsetof(Record, shape)}, uint64_t{kRecords}, uint64_t{kTemplates},
        uint64_t{kPlanEntries}, uint64_t{kSites}, uint64_t{kStatsOffset}, uint64_t{kTotalBytes}}) {
    hash = (hash ^ value) * 0x100000001b3;
  }
  return hash;
}

}  // namespace rueda::flight
