#include "attention/kernel_timing.h"

#include <ctime>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <random>

#include "collectives/kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace rueda::attention {
namespace {

constexpr int64_t kTimedQueries = 384, kTimedKeys = 768;  // whole blocks of each kernel
constexpr int kRounds = 3;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Of a normal distribution, as the kernel reads them.
struct TimedRows {
  TimedRows(DType dtype, int64_t count, int64_t width, uint32_t seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values(static_cast<size_t>(count * width));
    for (float& x : values) x = normal(engine);
    memory.resize(values.size() * size_of(dtype));
    if (dtype == DType::kFloat32) {
      memory.assign(reinterpret_cast<const std::byte*>(values.data()),
                    reinterpret_cast<const std::byte*>(values.data() + values.size()));
    } else {
      kernels::convert_from_f32(dtype, values.data(), memory.data(), values.size());
    }
    rows = {memory.data(), width, static_cast<uint8_t>(dtype)};
  }
  std::vector<std::byte> memory;
  RowsIn rows;
};

}  // namespace

std::vector<double> time_kernels(const std::vector<const LocalKernel*>& kernels, DType queries,
                                 DType keys, int64_t head_dim) {
  const TimedRows q(queries, kTimedQueries, head_dim, 1), k(keys, kTimedKeys, head_dim, 2),
      v(keys, kTimedKeys, head_dim, 3), dout(queries, kTimedQueries, head_dim, 4);
  std::vector<int32_t> numbers(kTimedKeys);
  std::iota(numbers.begin(), numbers.end(), 0);
  std::vector<float> acc(static_cast<size_t>(kTimedQueries * head_dim)), dq(acc.size()),
      m(kTimedQueries), l(kTimedQueries), delta(kTimedQueries),
      dk(static_cast<size_t>(kTimedKeys * head_dim)), dv(dk.size());
  const std::vector<float> lse(kTimedQueries, 10.0f);
  struct Free {
    void operator()(float* floats) const { ::operator delete[](floats, std::align_val_t{64}); }
  };
  const std::unique_ptr<float, Free> scratch(
      static_cast<float*>(::operator new[](kScratchFloats * sizeof(float), std::align_val_t{64})));
  QueryHead head;
  head.q = q.rows;
  head.acc = acc.data();
  head.m = m.data();
  head.l = l.data();
  head.dout = dout.rows;
  head.lse = lse.data();
  head.delta = delta.data();
  head.dq = dq.data();
  KernelTile tile;
  tile.queries = kTimedQueries;
  tile.keys = kTimedKeys;
  tile.head_dim = head_dim;
  tile.q_rows = tile.k_rows = numbers.data();
  tile.low = -kTimedKeys;
  tile.high = kTimedKeys;
  tile.scale = 0.1f;
  tile.heads = &head;
  tile.head_count = 1;
  tile.acc_stride = tile.dkv_stride = head_dim;
  tile.ml_stride = 1;
  tile.k = k.rows;
  tile.v = v.rows;
  tile.dk = dk.data();
  tile.dv = dv.data();
  std::vector<double> best(kernels.size(), std::numeric_limits<double>::infinity());
  for (int round = 0; round <= kRounds; ++round) {  // the first warms up
    for (size_t i = 0; i < kernels.size(); ++i) {
      m.assign(kTimedQueries, -std::numeric_limits<float>::infinity());
      l.assign(kTimedQueries, 0.0f);
      const double begin = thread_seconds();
      kernels[i]->forward(tile, scratch.get());
      kernels[i]->backward(tile, scratch.get());
      const double seconds = thread_seconds() - begin;
      if (round > 0 && seconds < best[i]) best[i] = seconds;
    }
  }
  return best;
}

bool has_matrix_units() {
#if defined(__x86_64__)
  static const bool found = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 22 & 1) != 0;  // AMX-BF16
  }();
  return found;
#else
  return false;
#endif
}

}  // namespace rueda::attention
