// Backward: dq by items of queries, dk and dv by items of keys.
#pragma once

#include "attention/cuda/block.h"
#include "attention/cuda/scores.h"

namespace rueda::attention::cuda {

// What both passes of backward have of a query.
template <int kRows>
struct QueryNumbers {
  float lse[kRows], delta[kRows];

  RUEDA_DEVICE void load(int t, const Call& call, int64_t batch, int64_t head,
                         const RowRun& queries, int64_t begin) {
    if (t >= kRows) return;
    const bool has = begin + t < queries.count;
    lse[t] = has ? *number(call.lse, batch, head, queries, begin + t) : minus_infinity();
    delta[t] = has ? *number(call.delta, batch, head, queries, begin + t) : 0;
  }
  // The weight of a product of rows, and what a change of the product changes.
  RUEDA_DEVICE void weigh(const Scores& scores, int row, bool seen, float product, int64_t apart,
                          float dp, float* p, float* ds) const {
    const bool counts = seen && lse[row] != minus_infinity();
    *p = counts ? expf(scores.of(product, apart) - lse[row]) : 0;
    *ds = counts ? *p * (dp - delta[row]) * scores.change(product) : 0;
  }
};

template <typename Block, typename Element, int kRows, int kWidth>
struct BackwardQueries {
  static constexpr int kEach = kRows / kSide, kColumns = kWidth / kSide;
  struct Shared {
    Tile<kRows, kWidth> q, dout, kv;
    Tile<kRows, kRows> ds;
    QueryNumbers<kRows> rows;
  };
  struct Kept {
    float dq[kEach][kColumns], dp[kEach][kEach];
  };

  RUEDA_DEVICE static void run(const Block& block, const Call& call, const Item& item,
                               int64_t batch, int64_t head, Shared& s) {
    const int width = call.head_dim;
    const int64_t kv_head = head / (call.heads / call.kv_heads);
    const Scores made(call, batch, head);
    typename Block::template Own<Kept> own;
    block.each([&](int t) {
      load<Element>(t, call.q, batch, head, item.rows, 0, width, &s.q);
      load<Element>(t, call.dout, batch, head, item.rows, 0, width, &s.dout);
      s.rows.load(t, call, batch, head, item.rows, 0);
      for (auto& row : own[t].dq)
        for (float& value : row) value = 0;
    });
    for (int64_t r = item.first; r < item.first + item.ranges; ++r) {
      const Range& keys = call.ranges[r];
      for (int64_t begin = 0; begin < keys.rows.count; begin += kRows) {
        if (!any_seen<false>(item, keys, begin, kRows)) continue;
        block.each([&](int t) {
          load<Element>(t, call.v, batch, kv_head, keys.rows, begin, width, &s.kv);
        });
        block.each([&](int t) { dot(t, s.dout, s.kv, width, own[t].dp); });
        block.each([&](int t) {
          load<Element>(t, call.k, batch, kv_head, keys.rows, begin, width, &s.kv);
        });
        block.each([&](int t) {
          float scores[kEach][kEach], p;
          dot(t, s.q, s.kv, width, scores);
          for (int i = 0; i < kEach; ++i) {
            for (int j = 0; j < kEach; ++j) {
              const int row = t / kSide + kSide * i, key = t % kSide + kSide * j;
              s.rows.weigh(made, row, sees<false>(item, row, keys, begin + key), scores[i][j],
                           difference<false>(item, row, keys, begin + key), own[t].dp[i][j], &p,
                           &s.ds.at[row][key]);
            }
          }
        });
        block.each([&](int t) { multiply<false>(t, s.ds, s.kv, own[t].dq); });
      }
    }
    block.each([&](int t) {
      store<true, kRows, kWidth>(t, call.dq, batch, head, item.rows, width, own[t].dq);
    });
  }
};

// Items are of keys, ranges of queries; `head` is a KV head, whose query heads follow one another.
template <typename Block, typename Element, int kRows, int kWidth>
struct BackwardKeys {
  static constexpr int kEach = kRows / kSide, kColumns = kWidth / kSide;
  struct Shared {
    Tile<kRows, kWidth> k, v, q, dout;
    Tile<kRows, kRows> p, ds;
    QueryNumbers<kRows> rows;
  };
  struct Kept {
    float dk[kEach][kColumns], dv[kEach][kColumns];
  };

  RUEDA_DEVICE static void run(const Block& block, const Call& call, const Item& item,
                               int64_t batch, int64_t kv_head, Shared& s) {
    const int width = call.head_dim;
    const int64_t group = call.heads / call.kv_heads;
    typename Block::template Own<Kept> own;
    block.each([&](int t) {
      load<Element>(t, call.k, batch, kv_head, item.rows, 0, width, &s.k);
      load<Element>(t, call.v, batch, kv_head, item.rows, 0, width, &s.v);
      for (int i = 0; i < kEach; ++i)
        for (int j = 0; j < kColumns; ++j) own[t].dk[i][j] = own[t].dv[i][j] = 0;
    });
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const Scores made(call, batch, head);
      for (int64_t r = item.first; r < item.first + item.ranges; ++r) {
        const Range& queries = call.ranges[r];
        for (int64_t begin = 0; begin < queries.rows.count; begin += kRows) {
          if (!any_seen<true>(item, queries, begin, kRows)) continue;
          block.each([&](int t) {
            load<Element>(t, call.q, batch, head, queries.rows, begin, width, &s.q);
            load<Element>(t, call.dout, batch, head, queries.rows, begin, width, &s.dout);
            s.rows.load(t, call, batch, head, queries.rows, begin);
          });
          block.each([&](int t) {
            float scores[kEach][kEach], dp[kEach][kEach];
            dot(t, s.q, s.k, width, scores);
            dot(t, s.dout, s.v, width, dp);
            for (int i = 0; i < kEach; ++i) {
              for (int j = 0; j < kEach; ++j) {
                const int row = t / kSide + kSide * i, key = t % kSide + kSide * j;
                s.rows.weigh(made, row, sees<true>(item, key, queries, begin + row), scores[i][j],
                             difference<true>(item, key, queries, begin + row), dp[i][j],
                             &s.p.at[row][key], &s.ds.at[row][key]);
              }
            }
          });
          block.each([&](int t) {
            multiply<true>(t, s.p, s.dout, own[t].dv);
            multiply<true>(t, s.ds, s.q, own[t].dk);
          });
        }
      }
    }
    block.each([&](int t) {
      store<true, kRows, kWidth>(t, call.dk, batch, kv_head, item.rows, width, own[t].dk);
      store<true, kRows, kWidth>(t, call.dv, batch, kv_head, item.rows, width, own[t].dv);
    });
  }
};

}  // namespace rueda::attention::cuda
