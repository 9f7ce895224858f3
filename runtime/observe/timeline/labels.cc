#include "runtime/observe/timeline/labels.h"

#include <utility>

namespace rueda::timeline {

LabelId Labels::add(const std::string& name, Known known) {
  const auto id = static_cast<LabelId>(known_.size());
  by_name_.emplace(name, id);
  known_.push_back(std::move(known));
  return id;
}

LabelId Labels::of_tensor(const std::string& name, DType dtype, const Shape& shape, uint32_t set) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = by_name_.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    const Known& known = known_[it->second];
    if (known.type == dtype && known.set == set && known.extents == shape &&
        !known.label.dtype.empty())
      return it->second;
  }
  const std::string title = set == 0 ? name : name + " (process set " + std::to_string(set) + ")";
  return add(name, {{title, name_of(dtype), to_string(shape)}, shape, dtype, set});
}

LabelId Labels::of_mark(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto [begin, end] = by_name_.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    if (known_[it->second].label.dtype.empty()) return it->second;
  }
  return add(name, {{name, "", ""}, {}, DType::kUInt8});
}

Label Labels::get(LabelId id) const {
  const std::lock_guard lock(mutex_);
  return known_[id].label;
}

}  // namespace rueda::timeline
