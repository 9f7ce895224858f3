// What stands behind the C ABI's handles, and the helpers of its functions.
#pragma once

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "attention/kernel_registry.h"
#include "bindings/c/include/rueda/rueda.h"
#include "bindings/c/max_vote.h"
#include "collectives/base/status.h"
#include "proto/messages.h"
#include "runtime/engine/runtime.h"
#include "runtime/observe/life/life_keeper.h"
#include "runtime/rendezvous/store_client.h"

namespace rueda::c_abi {

// One rank of one job, from init to shutdown. Calls under way keep it: it goes with the last of
// them.
struct Member {
  std::unique_ptr<engine::Runtime> runtime;
  MaxVote stop{"rueda.should_stop"};
  std::atomic<bool> listens{false};      // to the signals of a stop: from the first vote on
  std::atomic<bool> stop_agreed{false};  // for good
  MaxVote commit{"rueda.commit"};
  std::string preemption_signals;
  int64_t heap_bytes = 0;       // as configured
  bool check_programs = false;  // of attention; as configured
  // What the launcher keeps for its ranks; null: nobody does.
  std::shared_ptr<rendezvous::StoreClient> store;
  // Told what this rank did, when it has left; may be empty.
  std::function<void(const wire::RankSummary&)> tell_summary;

  // Made with the first attention; waits at its end for its calls, which the runtime's has ended.
  attention::Engine* attention();
  // Leaves the epoch, for the next one or with the job. Once.
  void leave(bool goes_on = false);

 private:
  std::mutex attention_mutex_;
  std::unique_ptr<attention::Engine> attention_;
};
using MemberPtr = std::shared_ptr<Member>;

// What the launcher has said of the epoch that a context is for. Never changes.
struct EpochRecord {
  wire::NewEpoch said;
  uint64_t member = 0;
  bool elastic = false;
  life::LifeKeeper* life = nullptr;  // null: no life page
  int64_t heap_bytes = 0;            // as configured
  membership::Membership expected;   // of a provisional context: ranks and sizes alone
  bool provisional() const { return said.answer == wire::EpochAnswer::kProvisional; }
};

}  // namespace rueda::c_abi

// Counted by its users; a shell that stays when the rank has left.
struct rueda_context {
  std::atomic<int64_t> users{1};
  uint64_t process = 0;  // rueda::fork_generation() of its creator: a forked child may not use it
  std::mutex mutex;
  rueda::c_abi::MemberPtr member;  // guarded; null: has left, is leaving, or is provisional
  bool was_left = false;           // guarded
  std::shared_ptr<const rueda::c_abi::EpochRecord> epoch;  // null: nobody decides epochs here
  // Guarded by `leaving`: of members, that this rank knew when it left (wire::Standing); whether an
  // epoch that it was given after that has ended before all had met.
  std::vector<std::vector<uint64_t>> process_sets;
  bool epoch_ended = false;
  std::mutex leaving;  // held while the rank leaves, and until it is in the next epoch
  std::atomic<bool> given_up{false};  // the next epoch is not wanted any more
};

struct rueda_request {
  std::shared_ptr<rueda::engine::Completion> completion;
  rueda::engine::Request* operation = nullptr;  // the same; null: an attention call
  uint64_t process = 0;                         // as the context's
  // The start (Completion::starts) whose end a waiting thread has been told; at first none's.
  std::atomic<uint64_t> told{UINT64_MAX};
};

namespace rueda::c_abi {

// Fills in `error` (may be null) and returns the code.
int32_t report(const Status& status, rueda_error* error);

// The member, for one call. An error: there is none (any more), or it is another process's.
Result<MemberPtr> use(const rueda_context* context);
// What it was told if it is provisional still; else null.
const EpochRecord* provisional(const rueda_context* context);
// The attention kernels of this process, which all its contexts use.
attention::Kernels& kernels();
// Null instead of an error, for functions without one.
MemberPtr try_use(const rueda_context* context) noexcept;
// Is this the process in which that generation was made, and no fork of it?
Status check_process(uint64_t process);

// Handles are made before what they are for is started: from then on nothing may fail.
std::unique_ptr<rueda_request> make_handle();
void fill(rueda_request* handle, engine::RequestPtr request);

// Runs a function that may allocate; nothing is thrown across the ABI.
template <typename Function>
int32_t guarded(rueda_error* error, Function function) noexcept {
  try {
    return report(function(), error);
  } catch (const std::bad_alloc&) {
    return report({Code::kResourceExhausted, "out of memory"}, error);
  } catch (const std::exception& e) {
    return report(internal_error(e.what()), error);
  }
}

// The same for functions that give a value, and `otherwise` when there is none.
template <typename Value, typename Function>
Value guarded_value(Value otherwise, Function function) noexcept {
  try {
    return function();
  } catch (const std::exception&) {
    return otherwise;
  }
}

// A struct of a caller's, as this library knows it: fields that an older, shorter one lacks keep
// the values of `whole`, which begins as its *_INIT does. least: the first version's size.
template <typename Struct>
Status read_struct(const Struct* given, size_t least, const char* name, Struct* whole) {
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < least || size > sizeof(Struct)) {
    return invalid_argument(std::string(name) + ".struct_size is " + std::to_string(size) +
                            ": begin with its *_INIT macro, and do not use a newer header than "
                            "the library (which knows " +
                            std::to_string(sizeof(Struct)) + ")");
  }
  std::memcpy(whole, given, size);
  return {};
}

// An Operation from the C struct.
// with_memory: input and output are given with it.
Result<engine::Operation> convert(const rueda_op* op, bool with_memory = true);

// Negative: without limit. More than a century is without limit too.
std::chrono::nanoseconds to_nanoseconds(double seconds);

}  // namespace rueda::c_abi
