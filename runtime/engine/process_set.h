// ProcessSet: a group of ranks that runs collectives among itself, as this rank knows it; and the
// table of all of them.
//
// The table changes on every rank at the same point of the global set's response stream, so that
// ids and channels follow from it alike on all ranks. Set 0 has all ranks and is always there.
//
// Ordered groups (ordered_group.h) are in the table too, under numbers of this rank alone: they
// come and go as this rank likes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/desc/tags.h"
#include "runtime/engine/request.h"

namespace rueda::engine {

class GroupEngine;
class OrderedGroup;

// Names in use on this rank, and who waits for one.
struct NameTable {
  std::unordered_map<std::string, NamePtr> names;
  std::unordered_map<std::string, std::deque<RequestPtr>> waiting;
};

struct ProcessSet {
  uint32_t id = 0;          // as users know it; after a removal it is given again, the oldest first
  uint32_t serial = 0;      // as messages know it; never given again
  std::vector<Rank> ranks;  // the members' numbers in the job, ascending
  std::optional<Rank> place;  // this rank's among them; empty: it is not one
  // Which of the arenas' groups of channels; empty: no channels are left.
  std::optional<size_t> channels;
  std::array<std::atomic<uint64_t>, 16> unnamed{};  // operations since the last join, by kind
  std::array<std::atomic<uint64_t>, 16> unnamed_persistent{};  // requests ever made, by kind
  NameTable names;  // guarded by the request queue's lock
  // Guarded by the progress lock; null: nothing runs in it here (any more).
  GroupEngine* group = nullptr;

  // ---- of an ordered group: ranks are in the order that was given, id and serial this rank's own
  bool ordered = false;
  std::string key;
  OrderedGroup* ordered_group = nullptr;  // guarded by the progress lock

  Rank size() const { return static_cast<Rank>(ranks.size()); }
  std::optional<Rank> place_of(Rank rank) const;
  std::string describe() const;  // "process set 1 (ranks 0, 2)", "group 'dp' (ranks 2, 0)"
};
using ProcessSetPtr = std::shared_ptr<ProcessSet>;

// Threads: any; add, close and remove from one at a time.
class ProcessSetTable {
 public:
  static constexpr uint32_t kFirstGroup = 1 << 24;           // id of the first ordered group
  static constexpr uint32_t kMostSerials = tags::kMostSets;  // what tags have room for
  ProcessSetTable(Rank rank, Rank size);

  const ProcessSetPtr& global() const { return global_; }
  // kInvalidArgument: there is none, or it is being removed.
  Result<ProcessSetPtr> find(uint32_t id) const;
  // The same, of which this rank has to be a member.
  Result<ProcessSetPtr> find_own(uint32_t id) const;
  std::vector<ProcessSetPtr> all() const;  // by id

  // What add() would make of these ranks (ascending), without adding it. kInvalidArgument: they are
  // no set of ranks of the job, or a set of them exists.
  Result<ProcessSetPtr> plan(const std::vector<int64_t>& ranks) const;
  ProcessSetPtr add(const std::vector<int64_t>& ranks);  // plan() is ok
  // Not found by find() from here on.
  void close(const ProcessSetPtr& set);
  void remove(const ProcessSetPtr& set);  // its id and channels may be given again

  // An ordered group of these ranks of the job. kInvalidArgument: not distinct ranks of it, this
  // one among them, or the key is none.
  Result<ProcessSetPtr> open_group(std::string key, std::vector<Rank> ranks);
  // Not found by find() from here on. False: it was closed before.
  bool close_group(const ProcessSetPtr& group);

 private:
  Result<ProcessSetPtr> find_locked(uint32_t id) const;
  std::optional<size_t> free_channels(const std::vector<Rank>& ranks) const;

  const Rank rank_;
  const ProcessSetPtr global_;
  mutable std::mutex mutex_;
  std::vector<ProcessSetPtr> sets_;  // by id
  ProcessSetPtr closed_;
  std::deque<uint32_t> free_ids_;
  uint32_t next_id_ = 1;
  uint32_t next_serial_ = 1;
  std::unordered_map<uint32_t, ProcessSetPtr> ordered_;  // by id
  uint32_t next_group_ = 0;
};

}  // namespace rueda::engine
