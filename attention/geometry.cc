#include "attention/geometry.h"

#include <algorithm>

#include "collectives/base/check.h"

namespace rueda::attention {

// Heads of this side that lie before KV head `head` in a row of the set.
int64_t Geometry::heads_before(const Set& set, int64_t head) const {
  if (side_ == Side::kKeys) return head - set.head_begin;
  return std::clamp(head * group_, heads_.q_begin, heads_.q_end) -
         std::clamp(set.head_begin * group_, heads_.q_begin, heads_.q_end);
}

const Geometry::Set& Geometry::set_of(int64_t head) const {
  for (const Set& set : sets_) {
    if (head >= set.head_begin && head < set.head_end) return set;
  }
  RUEDA_CHECK(false, "a tile has a head whose rows did not travel");
  return sets_.front();
}

int64_t Geometry::offset(int64_t batch, int64_t head, int64_t query_head) const {
  const Set& set = set_of(head);
  return batch * batch_stride_ + set.offset + (heads_before(set, head) + query_head) * width_;
}

Geometry Geometry::local(const AttentionPlan& plan, Side side, int64_t width) {
  Geometry result;
  result.side_ = side;
  result.heads_ = plan.heads;
  result.group_ = plan.head_group();
  result.batch_ = plan.spec.batch;
  result.width_ = width;
  Set set;
  set.head_begin = plan.heads.kv_begin;
  set.head_end = plan.heads.kv_end;
  set.row_width = result.heads_before(set, set.head_end) * width;
  result.batch_stride_ =
      set.row_width * (side == Side::kKeys ? plan.group_keys() : plan.group_tokens());
  result.sets_.push_back(set);
  return result;
}

Geometry Geometry::message(const AttentionPlan& plan, const std::vector<RowSet>& sets, Side side,
                           int64_t width) {
  Geometry result;
  result.side_ = side;
  result.heads_ = plan.heads;
  result.group_ = plan.head_group();
  result.batch_ = plan.spec.batch;
  result.width_ = width;
  for (const RowSet& rows : sets) {
    Set set;
    set.head_begin = rows.head_begin;
    set.head_end = rows.head_end;
    set.rows = &rows.rows;
    set.offset = result.batch_stride_;
    set.row_width = result.heads_before(set, set.head_end) * width;
    set.numbers = std::make_shared<std::vector<int32_t>>();
    int32_t number = 0;
    for (const Run& run : rows.rows) {
      if (run.last() >= std::ssize(*set.numbers))
        set.numbers->resize(static_cast<size_t>(run.last() + 1), -1);
      for (int64_t i = 0; i < run.count; ++i)
        (*set.numbers)[static_cast<size_t>(run.at(i))] = number++;
    }
    result.batch_stride_ += set.row_width * number;
    result.sets_.push_back(std::move(set));
  }
  return result;
}

}  // namespace rueda::attention
