// The messages of wire.proto as plain structs, same names, same order. They know nothing of bytes:
// negotiation_codec.h and store_codec.h turn them into wire format and back.
//
// Defaults are what a caller most often means (scale 1, host memory, not cached); on the wire an
// absent field is zero, as proto3 has it, and the codecs keep the two apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"

namespace rueda::wire {

// ---- negotiation -------------------------------------------------------------------------------

// One tensor that one rank has ready.
struct Request {
  std::string name;
  CollectiveKind kind = CollectiveKind::kAllreduce;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  std::vector<int64_t> shape;
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<int64_t> splits;  // alltoall: rows for each rank
  int32_t device = -1;          // -1: host memory, 0: a GPU, whichever this rank uses
  std::string group;            // "" or the name shared by the members of a grouped call
  uint32_t group_size = 0;
  std::string layout;  // dense-stride permutation, "" for row major
  // allgather, alltoall into the caller's memory: the rows that its output has room for, exactly.
  // -1: whatever comes.
  int64_t output_rows = -1;
  std::vector<int64_t> output_splits;  // the same: rows that are expected from each rank; or empty

  bool operator==(const Request&) const = default;
};

// Where a rank called an operation that it waits for.
struct CallSite {
  std::string name;
  std::string place;  // "train.py:22 in step"; "": unknown

  bool operator==(const CallSite&) const = default;
};

// rank -> root.
struct RequestList {
  uint64_t epoch = 0;
  uint32_t process_set = 0;
  std::vector<Request> requests;     // in the order of submission
  std::vector<uint64_t> cached;      // cache ids, in the order of submission
  std::vector<std::string> awaited;  // names that a thread on this rank is blocked on
  bool leaving = false;
  uint64_t plan = 0;  // 2g - 1: step plan g is in force here; 2g: this rank is back from it
  // After all of the above: neutral contributions play this rank's part from here on.
  bool joining = false;
  std::vector<CallSite> call_sites;  // answers ResponseList::where
  uint64_t evictions = 0;  // ids that this rank has forgotten as told, since the beginning

  bool operator==(const RequestList&) const = default;
};

// One tensor in a batch, as agreed by all ranks.
struct ResponseEntry {
  std::string name;
  int64_t cache_id = -1;
  // Where the id is new, or there is none; else the cache says it.
  std::vector<int64_t> first_dims;  // allgather: rows per rank
  std::vector<int64_t> splits;      // alltoall: size x size matrix, row = sender
  // Ranks that have joined: neutral contributions play their part. Of an error: those that had not
  // submitted it, whom it does not concern.
  std::vector<int32_t> absent;
  std::vector<Request> neutral;  // one at most: for what, where the cache does not say it

  bool operator==(const ResponseEntry&) const = default;
};

// A rank's last word on a step plan.
struct LastWord {
  uint64_t epoch = 0;
  uint32_t process_set = 0;
  uint64_t generation = 0;  // of the plan; from 1
  uint64_t entered = 0;     // batches of it that the rank has entered
  bool operator==(const LastWord&) const = default;
};

// rank -> the other members of an ordered group.
struct GroupWord {
  enum class What : uint8_t {
    kHello = 1,
    kBye = 2,
    kAbort = 3,
    kWaits = 4,
    kWants = 5,
    kOffers = 6,
    kHasEnough = 7,
    kMeets = 8,
    kGoes = 9
  };
  static constexpr int64_t kNeedsNone = -1;  // channels: it shares memory with no other member
  static constexpr int64_t kHasNone = -2;

  uint64_t epoch = 0;
  What what = What::kHello;
  uint64_t number = 0;          // the sender's of the group
  std::string key;              // hello
  std::vector<int64_t> ranks;   // hello: of the job, in the group's order; abort: who began it
  int64_t channels = kHasNone;  // hello: which of the sender's groups of channels
  // bye: that have ended here; none after these ever will. waits: that this rank has begun.
  uint64_t calls = 0;
  std::string reason;     // bye, abort
  Code code = Code::kOk;  // abort
  uint32_t tag = 0;       // of messages: wants, offers (calls: sent until now), has enough; of GPU
                          // tensors: meets (a code: they differ, with the reason), goes
  uint32_t space = 0;     // of the tag; outside of groups

  bool operator==(const GroupWord&) const = default;
};

// One call in an ordered group, as one member asks for it.
struct GroupCall {
  std::vector<Request> requests;  // without names
  std::string place;              // "train.py:22 in step"; "": unknown

  bool operator==(const GroupCall&) const = default;
};

// One batch of a step plan.
struct PlannedBatch {
  std::vector<uint64_t> ids;  // cache ids of its members, in order
  uint32_t protocol = 0;      // as in Response

  bool operator==(const PlannedBatch&) const = default;
};

// From here on these batches come again and again in this order.
struct StepPlan {
  uint64_t generation = 0;  // 1, 2, ...
  std::vector<PlannedBatch> batches;

  bool operator==(const StepPlan&) const = default;
};

// One batch, or an error for its tensors, or a plan.
struct Response {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  std::vector<ResponseEntry> entries;
  std::string error;  // not empty: complete the entries with this text
  Code error_code = Code::kOk;
  uint32_t protocol = 0;         // how the data moves inside a host: a ShmProtocol
  std::vector<StepPlan> freeze;  // one at most; then there are no entries
  int32_t last_joined = 0;       // join: the rank that joined last
  uint32_t error_rank = 0;       // whom the error is about, plus 1; 0: no single rank
  bool error_of_group = false;   // it is another operation's of the same group, and names that one

  bool operator==(const Response&) const = default;
};

// Told to the ranks that wait: who is missing.
struct Stall {
  std::string name;
  std::vector<int32_t> missing;
  double seconds = 0.0;

  bool operator==(const Stall&) const = default;
};

// root -> every rank.
struct ResponseList {
  uint64_t epoch = 0;
  uint32_t process_set = 0;
  std::vector<Response> responses;
  std::vector<Stall> stalls;
  bool left = false;  // answers RequestList.leaving, or root leaves: no responses follow
  std::vector<std::string> where;  // names on which ranks disagree: say where they were called
  int32_t left_before = 0;         // with left: who left first, before the root; 0: nobody
  std::vector<uint64_t> evicted;   // ids that mean nothing any more, after all of the above

  bool operator==(const ResponseList&) const = default;
};

// ---- rendezvous --------------------------------------------------------------------------------

enum class StoreOp : uint8_t {
  kUnspecified = 0,
  kSet = 2,
  kGet = 3,
  kReport = 4,
  kPut = 5,
  kAdd = 6,
  kCompareSet = 7,
  kErase = 8,
  kEnter = 9
};

struct StoreRequest {
  uint64_t id = 0;
  StoreOp op = StoreOp::kUnspecified;
  std::string key;
  std::string value;  // bytes
  uint64_t timeout_ns = 0;
  std::string expected;  // bytes

  bool operator==(const StoreRequest&) const = default;
};

struct StoreReply {
  uint64_t id = 0;
  Code code = Code::kOk;
  std::string message;
  std::string value;  // bytes
  uint64_t number = 0;
  uint32_t error_rank = 0;  // rank + 1 of whose death it tells; 0: none

  bool operator==(const StoreReply&) const = default;
};

// What a rank tells all others at init.
struct PlaceInfo {
  uint32_t version = 0;
  int32_t rank = 0;
  int32_t size = 0;
  int64_t pid = 0;
  std::string host_name;
  std::string host_id;
  std::string unix_address;
  std::string tcp_address;
  std::string agreed_settings;
  std::string layout_hash;

  bool operator==(const PlaceInfo&) const = default;
};

// Why a member asks to enter an epoch.
enum class EnterCause : uint8_t {
  kFirst = 0,        // its first init
  kEpochEnded = 1,   // the epoch ended under it: a peer was lost
  kInterrupted = 2,  // all members have left the epoch together, for an announced change
  kLeft = 3,         // it had left in order (shutdown), and calls init again
  kReady = 4,        // it joins a running job, has built its state's objects and waits to be let in
};

// Where a member stands when it asks to enter an epoch (StoreOp::kEnter).
struct Standing {
  uint64_t member = 0;
  uint64_t epoch = 0;  // that it was in last; 0: none yet
  EnterCause cause = EnterCause::kFirst;
  bool has_state = false;  // holds a state that all members of an epoch have agreed on
  uint64_t commits = 0;    // the number of the newest commit that it holds
  std::string layout;      // digest of names, shapes and dtypes of its state; empty: not known yet
  std::string version;     // of the library
  std::string settings;    // that ranks must agree on (PlaceInfo::agreed_settings)
  int64_t pid = 0;
  // Process sets that it is in or knows of, as members of the epoch before, ordered by id.
  std::vector<std::vector<uint64_t>> process_sets;
  // Members that have a copy of what it has for itself alone; itself while nobody else has one.
  std::vector<uint64_t> mirrors;

  bool operator==(const Standing&) const = default;
};

enum class EpochAnswer : uint8_t {
  kEnter = 0,  // be this rank of this epoch
  kProvisional =
      1,  // the job runs; build the model, then ask again with kReady. rank, size: as expected
  kRemoved = 2,  // the job goes on without this member: it ends with code 0
  kRefused = 3,  // `text` says why: another version, other settings, another layout
};

// What all members of an epoch do with their state before they go on. Decided once, for all.
enum class EpochBranch : uint8_t {
  kFresh = 0,    // the first epoch: rank 0 gives its state to all
  kRestore = 1,  // an epoch ended in the middle of a step: back to the newest commit, then sync
  kSync = 2,     // left at a commit: sync
  kGoOn = 3,     // left at a commit and nobody is new: nothing to copy
};

struct EpochMember {
  uint64_t member = 0;
  std::string host;         // as the job names it
  int32_t last_rank = -1;   // in the epoch before; -1: it was not in it
  bool has_target = false;  // holds the state of NewEpoch::target: may be a source

  bool operator==(const EpochMember&) const = default;
};

// The decider's answer to a Standing.
struct NewEpoch {
  EpochAnswer answer = EpochAnswer::kEnter;
  std::string text;  // of kRemoved, kRefused: why
  uint64_t epoch = 0;
  int32_t rank = 0;
  int32_t size = 1;
  EpochBranch branch = EpochBranch::kFresh;
  uint64_t target = 0;     // the commit that all have when they go on
  uint64_t announced = 0;  // the last announcement that this epoch serves (life page)
  // Memory of a member that is gone may still be written to: move to fresh memory first.
  bool fresh_memory = false;
  std::string tcp_address;           // of this member's host; empty: as its environment says
  std::vector<EpochMember> members;  // by rank
  std::vector<std::vector<int32_t>> process_sets;  // to be formed anew, as ranks; empty ones stay

  bool operator==(const NewEpoch&) const = default;
};

// Time in one stage, of all batches, tensors or marks together.
struct StageSum {
  std::string name;
  double seconds = 0;
  uint64_t count = 0;

  bool operator==(const StageSum&) const = default;
};

// How long this rank was blocked because that one arrived last.
struct Waited {
  int32_t rank = 0;
  double seconds = 0;
  uint64_t count = 0;

  bool operator==(const Waited&) const = default;
};

// What a rank did from init to shutdown, for the launcher's summary.
struct RankSummary {
  double seconds = 0;
  std::vector<StageSum> stages;
  double busy_seconds = 0;        // some batch was under way
  double overlapped_seconds = 0;  // of these, while backward ran
  uint64_t batches = 0;
  uint64_t planned_batches = 0;  // of these, without a message
  uint64_t bytes = 0;            // of the tensors of all batches
  std::vector<Waited> waited;
  uint64_t resident_peak = 0;  // bytes, of the process
  uint64_t heap_peak = 0;      // bytes of its shared memory that tensors had
  int32_t host = 0;            // its number
  std::string host_name;

  bool operator==(const RankSummary&) const = default;
};

}  // namespace rueda::wire
