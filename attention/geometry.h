// Geometry: where the rows of each head lie in a tensor or in a message, in elements.
//
// A local tensor is (batch, rows, heads, width) with all heads of the share. A message holds, for
// each batch and set of rows, the set's rows with the set's heads; rows then have other numbers.
#pragma once

#include <memory>
#include <vector>

#include "attention/plan.h"

namespace rueda::attention {

enum class Side { kQueries, kKeys };

class Geometry {
 public:
  // width: elements of one head and row.
  static Geometry local(const AttentionPlan& plan, Side side, int64_t width);
  static Geometry message(const AttentionPlan& plan, const std::vector<RowSet>& sets, Side side,
                          int64_t width);

  int64_t elements() const { return batch_stride_ * batch_; }
  // Of KV head h (global) and, on the side of queries, the g-th of its query heads in the share.
  int64_t offset(int64_t batch, int64_t head, int64_t query_head = 0) const;
  int64_t row_stride(int64_t head) const { return set_of(head).row_width; }
  // Row of the shard -> row here; null where they are the same.
  const std::vector<int32_t>* numbers(int64_t head) const { return set_of(head).numbers.get(); }

  // Calls copy(local offset, offset here, elements, batch) for every row of the message; whole is
  // the local tensor's geometry.
  template <typename Copy>
  void each_row(const Geometry& whole, Copy copy) const {
    for (int64_t b = 0; b < batch_; ++b) {
      for (const Set& set : sets_) {
        int64_t to = b * batch_stride_ + set.offset;
        const int64_t from = whole.offset(b, set.head_begin);
        const int64_t stride = whole.row_stride(set.head_begin);
        for (const Run& run : *set.rows) {
          if (run.step == 1 && set.row_width == stride) {  // whole rows, one after another
            copy(from + run.begin * stride, to, run.count * stride);
            to += run.count * stride;
            continue;
          }
          for (int64_t i = 0; i < run.count; ++i, to += set.row_width)
            copy(from + run.at(i) * stride, to, set.row_width);
        }
      }
    }
  }

 private:
  struct Set {
    int64_t head_begin = 0, head_end = 0;
    int64_t offset = 0, row_width = 0;
    const std::vector<Run>* rows = nullptr;
    std::shared_ptr<std::vector<int32_t>> numbers;
  };
  const Set& set_of(int64_t head) const;
  int64_t heads_before(const Set& set, int64_t head) const;

  Side side_ = Side::kKeys;
  HeadShare heads_;
  int64_t group_ = 1, batch_ = 1, width_ = 0, batch_stride_ = 0;
  std::vector<Set> sets_;
};

}  // namespace rueda::attention
