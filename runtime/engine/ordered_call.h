// Inside an ordered group: what its files share.
#pragma once

#include <memory>
#include <vector>

#include "collectives/desc/stage_times.h"
#include "runtime/engine/ordered_group.h"
#include "runtime/observe/timeline/nvtx_functions.h"

namespace rueda::engine {

// One exchange of entries.
struct OrderedGroup::Entry {
  negotiation::GroupEntry own;
  std::vector<negotiation::GroupEntry> all;  // by place
  std::unique_ptr<Collective> exchange;
};

struct OrderedGroup::Call {
  Call() { members.reserve(1); }  // which goes round with the list of one that is forming

  uint64_t number = 0;
  std::vector<Request*> members;
  AskedCall* asked = nullptr;
  std::unique_ptr<Entry> entry;  // from entering to running
  std::unique_ptr<Collective> telling;
  std::vector<std::byte> told;  // by all members, end to end
  std::unique_ptr<Collective> asking;
  std::vector<std::byte> answers;  // of all members
  CallSteps* prepared = nullptr;   // while it runs
  timeline::Nanos begun = 0;
  StageTimes times;
  bool recorded = false;  // somebody recorded when it began
  timeline::nvtx::RangeId range = 0;
  bool running = false;  // from its beginning to its end
};

}  // namespace rueda::engine
