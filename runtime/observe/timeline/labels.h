// Labels: what tensors and marks are called, by number, so that events need no text. Numbers stay.
//
// Threads: any; a mutex is held for one look-up.
#pragma once

#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>

#include "collectives/base/types.h"
#include "runtime/observe/timeline/event.h"

namespace rueda::timeline {

struct Label {
  std::string name;   // "allreduce.fc1.weight", "allreduce.x (process set 1)"
  std::string dtype;  // "" of marks
  std::string shape;  // "[128,64]"
};

class Labels {
 public:
  // Allocates only for what was not seen before.
  // set: its id.
  LabelId of_tensor(const std::string& name, DType dtype, const Shape& shape, uint32_t set = 0);
  LabelId of_mark(const std::string& name);
  Label get(LabelId id) const;

 private:
  struct Known {
    Label label;
    Shape extents;
    DType type = DType::kUInt8;
    uint32_t set = 0;
  };
  LabelId add(const std::string& name, Known known);

  mutable std::mutex mutex_;
  std::deque<Known> known_;
  std::unordered_multimap<std::string, LabelId> by_name_;
};

}  // namespace rueda::timeline
