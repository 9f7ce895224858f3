// Forward: scores of an item's queries, tile by tile of keys, added to sums that go on from what is
// there; and the merging of a library's result into such sums.
#pragma once

#include "attention/cuda/block.h"
#include "attention/cuda/scores.h"

namespace rueda::attention::cuda {

template <typename Block, typename Element, int kRows, int kWidth>
struct Forward {
  static constexpr int kEach = kRows / kSide, kColumns = kWidth / kSide;
  static constexpr int kSharers = kThreads / kRows;  // threads to a row of scores
  struct Shared {
    Tile<kRows, kWidth> q, kv;
    Tile<kRows, kRows> p;
    float part[kRows][kSharers], m[kRows], now[kRows], sums[kRows], keep[kRows];
  };
  struct Kept {
    float acc[kEach][kColumns];
  };

  RUEDA_DEVICE static void run(const Block& block, const Call& call, const Item& item,
                               int64_t batch, int64_t head, Shared& s) {
    const int width = call.head_dim;
    const int64_t kv_head = head / (call.heads / call.kv_heads);
    const Scores made(call, batch, head);
    typename Block::template Own<Kept> own;
    block.each([&](int t) {
      load<Element>(t, call.q, batch, head, item.rows, 0, width, &s.q);
      if (t < kRows) {
        const bool has = t < item.rows.count;
        s.m[t] = has ? *number(call.m, batch, head, item.rows, t) : minus_infinity();
        s.sums[t] = has ? *number(call.sums, batch, head, item.rows, t) : 0;
      }
      for (int i = 0; i < kEach; ++i) {
        const int row = t / kSide + kSide * i;
        for (int j = 0; j < kColumns; ++j) {
          const int x = t % kSide + kSide * j;
          own[t].acc[i][j] = row < item.rows.count && x < width
                                 ? number(call.acc, batch, head, item.rows, row)[x]
                                 : 0;
        }
      }
    });
    for (int64_t r = item.first; r < item.first + item.ranges; ++r) {
      const Range& keys = call.ranges[r];
      for (int64_t begin = 0; begin < keys.rows.count; begin += kRows) {
        if (!any_seen<false>(item, keys, begin, kRows)) continue;
        block.each([&](int t) {
          load<Element>(t, call.k, batch, kv_head, keys.rows, begin, width, &s.kv);
        });
        block.each([&](int t) {
          float scores[kEach][kEach];
          dot(t, s.q, s.kv, width, scores);
          for (int i = 0; i < kEach; ++i) {
            for (int j = 0; j < kEach; ++j) {
              const int row = t / kSide + kSide * i, key = t % kSide + kSide * j;
              s.p.at[row][key] =
                  sees<false>(item, row, keys, begin + key)
                      ? made.of(scores[i][j], difference<false>(item, row, keys, begin + key))
                      : minus_infinity();
            }
          }
        });
        block.each([&](int t) {
          const int row = t / kSharers;
          float most = minus_infinity();
          for (int key = t % kSharers; key < kRows; key += kSharers)
            most = fmaxf(most, s.p.at[row][key]);
          s.part[row][t % kSharers] = most;
        });
        block.each([&](int t) {
          if (t >= kRows) return;
          float most = s.m[t];
          for (int i = 0; i < kSharers; ++i) most = fmaxf(most, s.part[t][i]);
          s.now[t] = most;
          s.keep[t] = exp_from(s.m[t], most);
        });
        block.each([&](int t) {
          const int row = t / kSharers;
          float sum = 0;
          for (int key = t % kSharers; key < kRows; key += kSharers) {
            const float p = exp_from(s.p.at[row][key], s.now[row]);
            s.p.at[row][key] = p;
            sum += p;
          }
          s.part[row][t % kSharers] = sum;
          load<Element>(t, call.v, batch, kv_head, keys.rows, begin, width, &s.kv);
        });
        block.each([&](int t) {
          for (int i = 0; i < kEach; ++i) {
            const float keep = s.keep[t / kSide + kSide * i];
            for (int j = 0; j < kColumns; ++j) own[t].acc[i][j] *= keep;
          }
          multiply<false>(t, s.p, s.kv, own[t].acc);
          if (t < kRows) {
            float sum = s.sums[t] * s.keep[t];
            for (int i = 0; i < kSharers; ++i) sum += s.part[t][i];
            s.sums[t] = sum;
            s.m[t] = s.now[t];
          }
        });
      }
    }
    block.each([&](int t) {
      store<false, kRows, kWidth>(t, call.acc, batch, head, item.rows, width, own[t].acc);
      if (t < kRows && t < item.rows.count) {
        *number(call.m, batch, head, item.rows, t) = s.m[t];
        *number(call.sums, batch, head, item.rows, t) = s.sums[t];
      }
    });
  }
};

}  // namespace rueda::attention::cuda
