// Calls in an ordered group as they are kept for the next ones like them: what is asked for, and
// the collectives that do it. A call that was seen before describes, encodes and prepares nothing.
//
//   call --> KnownCalls --> AskedCall: the tensors, its entry
//                              |  entries of all members
//                              v
//                          CallSteps: sizes, results, collectives; one for each that is under
//                                        way at once
//
// Ownership: the cache owns both; a call that is under way keeps its own (in_use).
// Threads:   who holds the progress lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/desc/communicator.h"
#include "collectives/nccl/device_communicator.h"
#include "runtime/engine/batch.h"
#include "runtime/engine/request.h"
#include "runtime/negotiation/group_entry.h"

namespace rueda::engine {

struct CallSteps {
  // One collective of the call: tensors that are reduced or moved as one.
  struct Step {
    std::vector<size_t> tensors;
    std::unique_ptr<Collective> collective;
    nccl::StreamOrder order;  // of GPU tensors
  };

  std::vector<negotiation::GroupEntry> entries;  // that it follows from; empty: not from entries
  std::vector<TensorResult> results;             // by tensor
  std::vector<Step> steps;
  bool needs_buffers = false;  // of the channel
  bool in_use = false;
  bool on_gpu = false;

  bool done() const;
  // The first that has failed; ok: none.
  Status status() const;
  // The same, but for what a GPU refuses on all members alike.
  Status failure() const;
};

struct AskedCall {
  std::vector<wire::Request> tensors;  // without names; roots are ranks of the job
  uint32_t site = 0;
  size_t hash = 0;
  negotiation::GroupEntry entry;
  std::string told;  // the encoded GroupCall
  std::vector<std::unique_ptr<CallSteps>> prepared;
  uint32_t under_way = 0;  // calls that use it
  uint64_t used_at = 0;

  const wire::Request& first() const { return tensors.front(); }
  bool on_gpu() const { return first().device >= 0 && has_tensor(first().kind); }
};

class KnownCalls {
 public:
  // set: the group's. site_text: what a number of a call site stands for. Both borrowed.
  KnownCalls(const ProcessSet* set, std::function<std::string(uint32_t)> site_text)
      : set_(*set), site_text_(std::move(site_text)) {}

  // Of these requests, which are one call; to be given back.
  AskedCall* take(std::span<Request* const> members);
  void give_back(AskedCall* asked) { --asked->under_way; }

  // A free one that follows from these entries. Null: there is none.
  static CallSteps* find(AskedCall* asked, std::span<const negotiation::GroupEntry> entries);
  // Who runs calls of the host's or the GPU's tensors, and (null: the same) who those that need
  // buffers, which there are not.
  struct Communicators {
    Communicator* data;
    Communicator* large;
  };
  // entries empty: it is good for one call only. protocol: of all its collectives.
  Result<CallSteps*> prepare(AskedCall* asked, std::span<const negotiation::GroupEntry> entries,
                             std::span<const negotiation::SizesPtr> sizes, ShmProtocol protocol,
                             const Communicators& communicators);
  static void give_back(AskedCall* asked, CallSteps* prepared);
  // Those that need buffers are to be prepared anew. None is under way.
  void forget_large();
  // Their collectives end; nothing is under way any more.
  void clear() { asked_.clear(); }

 private:
  AskedCall* add(std::span<Request* const> members, size_t hash);
  void forget_oldest();

  const ProcessSet& set_;
  const std::function<std::string(uint32_t)> site_text_;
  std::vector<std::unique_ptr<AskedCall>> asked_;
  uint64_t clock_ = 0;
};

}  // namespace rueda::engine
