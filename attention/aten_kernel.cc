#include "attention/aten_kernel.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/aten_library.h"
#include "attention/seen.h"
#include "collectives/base/types.h"
#include "collectives/kernels/kernels.h"

namespace rueda::attention {
namespace {

using Tensor = AtenLibrary::Tensor;

constexpr int64_t kMostQueries = 1024, kMostKeys = 2048;  // of one call, so that memory is bounded
constexpr int64_t kWorth = 64 * 64;  // pairs: below, a call costs more than it saves
// Elements behind each row in backward: delta in parts, and zeros up to whole vectors.
constexpr int64_t kExtra = 8;

std::atomic<const AtenLibrary*> loaded_aten{nullptr};

// One thread, also inside of PyTorch, for as long as it lives.
class OneThread {
 public:
  explicit OneThread(const AtenLibrary& aten) : aten_(aten) {
    if (aten_.threads != nullptr && aten_.set_threads != nullptr) {
      before_ = aten_.threads();
      aten_.set_threads(1);
    }
    if (aten_.set_mkl_threads != nullptr) mkl_before_ = aten_.set_mkl_threads(1);
  }
  ~OneThread() {
    if (before_ > 0) aten_.set_threads(before_);
    if (aten_.set_mkl_threads != nullptr) aten_.set_mkl_threads(mkl_before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const AtenLibrary& aten_;
  int before_ = 0, mkl_before_ = 0;
};

void check_code(int32_t code, const char* what) {
  if (code != 0) throw std::runtime_error(std::string("PyTorch's kernel: ") + what + " failed");
}

// A tensor of PyTorch: (1, 1, rows, width) on memory of ours, or a result of its own.
class Held {
 public:
  explicit Held(const AtenLibrary& aten) : aten_(aten) {}
  Held(const AtenLibrary& aten, void* memory, DType dtype, int64_t rows, int64_t width)
      : aten_(aten) {
    const int64_t sizes[] = {1, 1, rows, width}, strides[] = {rows * width, rows * width, width, 1};
    make(memory, dtype, 4, sizes, strides);
  }
  // (1, 1, rows)
  Held(const AtenLibrary& aten, float* memory, int64_t rows) : aten_(aten) {
    const int64_t sizes[] = {1, 1, rows}, strides[] = {rows, rows, 1};
    make(memory, DType::kFloat32, 3, sizes, strides);
  }
  ~Held() {
    if (tensor != nullptr) aten_.release(tensor);
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  // Of one head and batch, so dense however its dimensions are ordered.
  const std::byte* data() const {
    void* memory = nullptr;
    check_code(aten_.data(tensor, &memory), "reading a result");
    return static_cast<const std::byte*>(memory);
  }
  Tensor tensor = nullptr;

 private:
  void make(void* memory, DType dtype, int64_t ndim, const int64_t* sizes, const int64_t* strides) {
    check_code(aten_.from_blob(memory, ndim, sizes, strides, 0,
                               dtype == DType::kBFloat16 ? aten_.bfloat16() : aten_.float32(),
                               aten_.cpu(), 0, &tensor),
               "wrapping memory");
  }
  const AtenLibrary& aten_;
};

float widen_one(DType dtype, const std::byte* from) {
  float value;
  if (dtype == DType::kFloat32) {
    std::memcpy(&value, from, 4);
  } else {
    kernels::convert_to_f32(dtype, from, &value, 1);
  }
  return value;
}

// Rows of one dtype one after another, each with `extra` elements behind it.
struct AtenRows {
  DType dtype = DType::kFloat32;
  int64_t rows = 0, width = 0, extra = 0;
  std::vector<std::byte> memory;

  int64_t bytes() const { return static_cast<int64_t>(size_of(dtype)); }
  int64_t padded() const { return width + extra; }
  std::byte* at(int64_t row, int64_t x = 0) {
    return memory.data() + (row * padded() + x) * bytes();
  }
  void put(int64_t row, int64_t x, float value) {
    if (dtype == DType::kFloat32) {
      std::memcpy(at(row, x), &value, 4);
    } else {
      kernels::convert_from_f32(dtype, &value, at(row, x), 1);
    }
  }
  void shape(DType of, int64_t count, int64_t columns, int64_t more) {
    dtype = of;
    rows = count;
    width = columns;
    extra = more;
    memory.assign(static_cast<size_t>(rows * padded() * bytes()), std::byte{0});
  }
  void gather(DType of, const RowsIn& from, const int32_t* numbers, int64_t count, int64_t columns,
              int64_t more) {
    shape(of, count, columns, more);
    const auto theirs = static_cast<DType>(from.dtype);
    for (int64_t i = 0; i < rows; ++i) {
      const std::byte* row =
          from.base + numbers[i] * from.stride * static_cast<int64_t>(size_of(theirs));
      if (theirs == dtype) {
        std::memcpy(at(i), row, static_cast<size_t>(width * bytes()));
      } else {  // only float32 is wider
        kernels::convert_to_f32(theirs, row, reinterpret_cast<float*>(at(i)),
                                static_cast<size_t>(width));
      }
    }
  }
  Held held(const AtenLibrary& aten) { return {aten, memory.data(), dtype, rows, padded()}; }
};

// Queries [begin, end) of a tile against keys [left, right): all of them, or a causal square.
struct Piece {
  int64_t begin, end, left, right;
  bool causal;
};

DType dtype_of(const KernelTile& tile) {
  const auto brain = static_cast<uint8_t>(DType::kBFloat16);
  return tile.heads[0].q.dtype == brain && tile.k.dtype == brain ? DType::kBFloat16
                                                                 : DType::kFloat32;
}

struct AtenBuffers {
  AtenRows q, k, v, dout, out;
  std::vector<float> row, lse;
};
AtenBuffers& aten_buffers() {
  static thread_local AtenBuffers own;
  return own;
}

void forward_part(const AtenLibrary& aten, const KernelTile& tile, const Piece& part) {
  AtenBuffers& b = aten_buffers();
  const DType dtype = dtype_of(tile);
  const int64_t d = tile.head_dim, rows = part.end - part.begin;
  const int32_t* q_rows = tile.q_rows + part.begin;
  b.k.gather(dtype, tile.k, tile.k_rows + part.left, part.right - part.left, d, 0);
  b.v.gather(dtype, tile.v, tile.k_rows + part.left, part.right - part.left, d, 0);
  const Held k = b.k.held(aten), v = b.v.held(aten);
  double scale = static_cast<double>(tile.scale);
  b.row.resize(static_cast<size_t>(d));
  for (int64_t h = 0; h < tile.head_count; ++h) {
    const QueryHead& head = tile.heads[h];
    b.q.gather(dtype, head.q, q_rows, rows, d, 0);
    const Held q = b.q.held(aten);
    Held out(aten), lse(aten);
    check_code(aten.forward(q.tensor, k.tensor, v.tensor, 0, part.causal ? 1 : 0, nullptr, &scale,
                            &out.tensor, &lse.tensor),
               "forward");
    const std::byte* outs = out.data();
    const auto* sums = reinterpret_cast<const float*>(lse.data());
    for (int64_t i = 0; i < rows; ++i) {
      const float* from = reinterpret_cast<const float*>(outs) + i * d;
      if (dtype != DType::kFloat32) {
        kernels::convert_to_f32(dtype, outs + i * d * b.q.bytes(), b.row.data(),
                                static_cast<size_t>(d));
        from = b.row.data();
      }
      float& m = head.m[q_rows[i] * tile.ml_stride];
      float& l = head.l[q_rows[i] * tile.ml_stride];
      float* acc = head.acc + q_rows[i] * tile.acc_stride;
      const float now = std::max(m, sums[i]);
      const float keep = std::exp(m - now), take = std::exp(sums[i] - now);
      for (int64_t x = 0; x < d; ++x) acc[x] = acc[x] * keep + from[x] * take;
      l = l * keep + take;
      m = now;
    }
  }
}

// It takes delta for the sum of dout * out. Behind each row of dout stand ones, of out the parts of
// delta, of the others zeros: the sum is delta, whatever out itself is (zeros), and no other
// product changes.
void backward_part(const AtenLibrary& aten, const KernelTile& tile, const Piece& part) {
  AtenBuffers& b = aten_buffers();
  const DType dtype = dtype_of(tile);
  const int64_t d = tile.head_dim, rows = part.end - part.begin, keys = part.right - part.left;
  const int32_t* q_rows = tile.q_rows + part.begin;
  const int32_t* k_rows = tile.k_rows + part.left;
  b.k.gather(dtype, tile.k, k_rows, keys, d, kExtra);
  b.v.gather(dtype, tile.v, k_rows, keys, d, kExtra);
  const Held k = b.k.held(aten), v = b.v.held(aten);
  double scale = static_cast<double>(tile.scale);
  b.row.resize(static_cast<size_t>(d));
  b.lse.resize(static_cast<size_t>(rows));
  const auto add = [&](const Held& from, const int32_t* numbers, int64_t count, float* to,
                       int64_t stride) {
    const std::byte* rows_of = from.data();
    for (int64_t i = 0; i < count; ++i) {
      const std::byte* row = rows_of + i * b.q.padded() * b.q.bytes();
      const auto* values = reinterpret_cast<const float*>(row);
      if (dtype != DType::kFloat32) {
        kernels::convert_to_f32(dtype, row, b.row.data(), static_cast<size_t>(d));
        values = b.row.data();
      }
      for (int64_t x = 0; x < d; ++x) to[numbers[i] * stride + x] += values[x];
    }
  };
  for (int64_t h = 0; h < tile.head_count; ++h) {
    const QueryHead& head = tile.heads[h];
    b.q.gather(dtype, head.q, q_rows, rows, d, kExtra);
    b.dout.gather(dtype, head.dout, q_rows, rows, d, kExtra);
    b.out.shape(dtype, rows, d, kExtra);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = q_rows[i] * tile.ml_stride;
      b.lse[static_cast<size_t>(i)] = head.lse[at];
      // exp(s - lse - low) = exp(s - lse) * fold, and both dP and delta carry it.
      const float fold = head.lse_low == nullptr ? 1.0f : std::exp(-head.lse_low[at]);
      if (fold != 1.0f) {
        for (int64_t x = 0; x < d; ++x) b.dout.put(i, x, widen_one(dtype, b.dout.at(i, x)) * fold);
      }
      float rest = head.delta[at] * fold;
      for (int64_t x = d; x < d + (dtype == DType::kFloat32 ? 1 : 3); ++x) {
        b.dout.put(i, x, 1.0f);
        b.out.put(i, x, rest);
        rest -= widen_one(dtype, b.out.at(i, x));
      }
    }
    const Held q = b.q.held(aten), dout = b.dout.held(aten), out = b.out.held(aten);
    const Held lse(aten, b.lse.data(), rows);
    Held dq(aten), dk(aten), dv(aten);
    check_code(
        aten.backward(dout.tensor, q.tensor, k.tensor, v.tensor, out.tensor, lse.tensor, 0,
                      part.causal ? 1 : 0, nullptr, &scale, &dq.tensor, &dk.tensor, &dv.tensor),
        "backward");
    add(dq, q_rows, rows, head.dq, tile.acc_stride);
    add(dk, k_rows, keys, tile.dk, tile.dkv_stride);
    add(dv, k_rows, keys, tile.dv, tile.dkv_stride);
  }
}

// Cuts a tile into what PyTorch's kernel can do and what remains for our own.
class Cut {
 public:
  Cut(const KernelTile& tile, bool backward, float* scratch)
      : aten_(*loaded_aten.load()),
        tile_(tile),
        backward_(backward),
        scratch_(scratch),
        limit_(aten_) {}

  void run() {
    for (int64_t begin = 0; begin < tile_.queries;) {
      const Seen first = seen_by(tile_, begin);
      begin = first.from < first.to ? rows(begin, first) : begin + 1;
    }
  }

 private:
  bool sees(int64_t i) const {
    const Seen seen = seen_by(tile_, i);
    return seen.from < seen.to;
  }

  // Queries from `begin` on, of which each sees something; returns where they end. Both ends of
  // what a query sees rise with it.
  int64_t rows(int64_t begin, Seen first) {
    const int64_t most = std::min(tile_.queries, begin + kMostQueries);
    // As long as each query sees as many more keys as the second: none or one.
    const int64_t grows = begin + 1 < most ? seen_by(tile_, begin + 1).to - first.to : 0;
    int64_t end = begin + 1;
    while (end < most && sees(end) &&
           seen_by(tile_, end).to - seen_by(tile_, end - 1).to == grows) {
      ++end;
    }
    bool diagonal = grows == 1;
    if ((end - begin < 64 && end < most) || grows > 1) {
      diagonal = false;
      while (end < most && sees(end)) ++end;
    }
    const Seen last = seen_by(tile_, end - 1);
    // What all see, and where a causal square begins: with the last key that the first query sees.
    const int64_t left = last.from, right = diagonal ? first.to - 1 : first.to;
    if (left > right || (end - begin) * (last.to - left) < kWorth) {
      own(begin, end, first.from, last.to);
      return end;
    }
    own(begin, end, first.from, left);
    for (int64_t key = left; key < right; key += kMostKeys)
      part({begin, end, key, std::min(right, key + kMostKeys), false});
    if (diagonal) {
      part({begin, end, right, last.to, true});
    } else {
      own(begin, end, right, last.to);
    }
    return end;
  }

  void part(const Piece& part) {
    if ((part.end - part.begin) * (part.right - part.left) < kWorth) {
      own(part.begin, part.end, part.left, part.right);
    } else if (backward_) {
      backward_part(aten_, tile_, part);
    } else {
      forward_part(aten_, tile_, part);
    }
  }

  // Queries [begin, end) against keys [left, right), by the kernel that takes everything.
  void own(int64_t begin, int64_t end, int64_t left, int64_t right) {
    if (left >= right) return;
    KernelTile some = tile_;
    some.queries = end - begin;
    some.keys = right - left;
    some.q_rows += begin;
    some.k_rows += left;
    some.q_pos += begin * some.q_step;
    some.k_pos += left * some.k_step;
    (backward_ ? native_kernel().backward : native_kernel().forward)(some, scratch_);
  }

  const AtenLibrary& aten_;
  const KernelTile& tile_;
  const bool backward_;
  float* const scratch_;
  const OneThread limit_;
};

}  // namespace

Status find_aten() {
  if (loaded_aten.load() != nullptr) return {};
  RUEDA_ASSIGN_OR_RETURN(const AtenLibrary* found, aten_library());
  loaded_aten = found;
  return {};
}

bool aten_available() { return find_aten().ok(); }

void aten_forward(const KernelTile& tile, float* scratch) { Cut(tile, false, scratch).run(); }
void aten_backward(const KernelTile& tile, float* scratch) { Cut(tile, true, scratch).run(); }

}  // namespace rueda::attention
