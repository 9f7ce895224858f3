// Who has what of a decode: which rank merges which rows, which keys lie here, how long messages
// are and where they go. Pure integers.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/decode.h"

namespace rueda::attention {

inline size_t index(int64_t i) { return static_cast<size_t>(i); }

// Of the first `tokens` tokens of a sequence, those that lie here.
inline int64_t here_of(const DecodeSpec& s, int64_t tokens) {
  return tokens > s.rank ? (tokens - s.rank - 1) / s.ranks + 1 : 0;
}

// Rows are numbered (sequence, query, head). A row's partial result: acc (head_dim), m, l, which is
// `width` floats. A rank's results are log-sum-exps, float32, by row, and behind them its rows.
struct DecodeShares {
  explicit DecodeShares(const DecodeSpec& spec) : s(spec), width(spec.head_dim + 2) {}
  const DecodeSpec& s;
  const int64_t width;

  int64_t of(int64_t sequences) const { return sequences * s.queries * s.heads; }
  int64_t all() const { return of(s.batch); }
  // Which rank merges the rows [begin(rank), begin(rank + 1)).
  int64_t begin(Rank rank) const {
    return s.own ? of(split_begin(s.batch, rank, s.ranks)) : split_begin(all(), rank, s.ranks);
  }
  int64_t count(Rank rank) const { return begin(rank + 1) - begin(rank); }
  // Row 0 of q and out.
  int64_t first() const { return s.own ? begin(s.rank) : 0; }

  bool queries_travel() const { return s.own && s.ranks > 1; }
  bool results_travel() const { return !s.own && s.ranks > 1; }
  int64_t row_bytes() const { return s.head_dim * static_cast<int64_t>(size_of(s.dtype)); }
  int64_t partial_bytes(Rank rank) const { return count(rank) * width * 4; }
  int64_t result_bytes(Rank rank) const { return count(rank) * (4 + row_bytes()); }
  // Results of the ranks lie so many bytes after each other; of one rank alone, nowhere else.
  int64_t result_stride() const {
    return results_travel() ? (result_bytes(0) + 63) / 64 * 64 : result_bytes(s.rank);
  }
  int64_t result_at(Rank rank) const { return results_travel() ? rank * result_stride() : 0; }
  int64_t results_bytes() const { return (results_travel() ? s.ranks : 1) * result_stride(); }
};

// Keys of one sequence on this rank that queries may see: places [begin, end), of which a query
// sees those within `left` tokens before it (-1: all). All queries see [begin, common).
struct DecodeSpan {
  int64_t sequence, begin, end, left, common;
};
// Those of a sequence one after the other; none is empty. Each `left` occurs once in a sequence.
std::vector<DecodeSpan> spans_of(const DecodeSpec& spec);

}  // namespace rueda::attention
