// gpu_kernels_check PLUGIN [--short]: the kernels of librueda_cuda.so against the host's
// arithmetic, and their bandwidth against a plain copy. Run by scripts/gpu_check on a machine with
// a GPU.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collectives/cuda/kernels/functions.h"

namespace {

using namespace rueda::cuda::kernels;

const KernelFunctions* kernels = nullptr;
int failures = 0;

void must(int error, const char* what) {
  if (error == 0) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::exit(1);
}

template <typename T>
T* on_gpu(size_t count, const T* values = nullptr) {
  void* memory = nullptr;
  must(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc");
  if (values != nullptr)
    must(cudaMemcpy(memory, values, count * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  return static_cast<T*>(memory);
}

template <typename T>
std::vector<T> from_gpu(const T* memory, size_t count) {
  std::vector<T> values(count);
  must(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return values;
}

void check(bool right, const std::string& what) {
  failures += !right;
  if (!right) std::printf("WRONG: %s\n", what.c_str());
}

std::vector<float> numbers(size_t count) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Tensors of odd sizes at odd places, packed with a factor into another format.
template <typename To>
void check_copy(Format to, const char* name, float factor) {
  std::vector<int64_t> sizes = {1, 7, 8, 8191, 8192, 8193, 100003};
  for (int i = 0; i < 200; ++i) sizes.push_back(1 + 37 * i);
  int64_t total = 0;
  for (const int64_t size : sizes) total += size;
  const std::vector<float> values = numbers(static_cast<size_t>(total));
  float* const from = on_gpu(values.size(), values.data());
  To* const packed = on_gpu<To>(values.size());
  std::vector<Copy> copies;
  for (int64_t begin = 0; const int64_t size : sizes) {
    copies.push_back({from + begin, packed + begin, size});
    begin += size;
  }
  for (const Table& table : plan(copies, 4, sizeof(To)))
    must(kernels->copy(&table, Format::kFloat32, to, factor, nullptr), "copy");
  const std::vector<To> result = from_gpu(packed, values.size());
  size_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const To expected = To(values[i] * factor);
    wrong += std::memcmp(&expected, &result[i], sizeof(To)) != 0;
  }
  check(wrong == 0, std::string("float32 -> ") + name + ": " + std::to_string(wrong) + " numbers");
  cudaFree(from);
  cudaFree(packed);
}

void check_int8() {
  constexpr int64_t kBlocks = 1000;
  std::vector<float> values = numbers(kBlocks * 256);
  std::fill(values.begin(), values.begin() + 256, 0.0f);
  values[300] = INFINITY;
  float* const from = on_gpu(values.size(), values.data());
  int8_t* const wire = on_gpu<int8_t>(kBlocks * 260);
  float* const back = on_gpu<float>(values.size());
  must(kernels->quantize(from, wire, kBlocks, nullptr), "quantize");
  must(kernels->dequantize(wire, back, kBlocks, nullptr), "dequantize");
  const std::vector<int8_t> bytes = from_gpu(wire, kBlocks * 260);
  const std::vector<float> result = from_gpu(back, values.size());
  size_t wrong = 0;
  for (int64_t block = 0; block < kBlocks; ++block) {
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < 256; ++i) {
      largest = std::fmax(largest, std::fabs(values[block * 256 + i]));
      finite = finite && std::isfinite(values[block * 256 + i]);
    }
    const float scale = largest / 127;
    for (int i = 0; i < 256; ++i) {
      const float level =
          finite ? std::nearbyintf(values[block * 256 + i] / (scale > 0 ? scale : 1)) : 0;
      const float got = result[block * 256 + i];
      wrong += bytes[block * 260 + i] != static_cast<int8_t>(level);
      wrong += finite ? got != level * scale : !std::isnan(got);
    }
  }
  check(wrong == 0, "int8: " + std::to_string(wrong) + " numbers");
  for (void* memory :
       {static_cast<void*>(from), static_cast<void*>(wire), static_cast<void*>(back)})
    cudaFree(memory);
}

void check_products() {
  const std::vector<float> a = numbers(1000003);
  std::vector<float> b = a;
  for (size_t i = 0; i < b.size(); ++i) b[i] = i % 3 == 0 ? -b[i] : 0.5f * b[i];
  double expected[3] = {0, 0, 0};
  for (size_t i = 0; i < a.size(); ++i) {
    expected[0] += double(a[i]) * b[i];
    expected[1] += double(a[i]) * a[i];
    expected[2] += double(b[i]) * b[i];
  }
  float* const x = on_gpu(a.size(), a.data());
  float* const y = on_gpu(b.size(), b.data());
  const auto count = static_cast<int64_t>(a.size());
  double* const scratch = on_gpu<double>(3 * static_cast<size_t>(kernels->product_parts(count)));
  double* const sums = on_gpu<double>(3);
  std::vector<double> first;
  for (int turn = 0; turn < 3; ++turn) {
    must(kernels->products(x, y, count, scratch, sums, nullptr), "products");
    const std::vector<double> result = from_gpu(sums, 3);
    if (turn == 0) first = result;
    check(result == first, "products: not the same bits every time");
    for (int k = 0; k < 3; ++k)
      check(std::fabs(result[k] - expected[k]) <= 1e-12 * std::fabs(expected[1]), "products");
  }
  for (void* memory : {static_cast<void*>(x), static_cast<void*>(y), static_cast<void*>(scratch),
                       static_cast<void*>(sums)})
    cudaFree(memory);
}

// Adasum's sum, to the bit: the weights in f64 as the host makes them.
void check_weighted_sum() {
  const std::vector<float> a = numbers(100003);
  std::vector<float> b(a.rbegin(), a.rend());
  const std::vector<double> cases[] = {{2.5, 7.0, 3.0}, {0.0, 0.0, 4.0}};
  for (const std::vector<double>& products : cases) {
    float* const x = on_gpu(a.size(), a.data());
    float* const y = on_gpu(b.size(), b.data());
    double* const sums = on_gpu(3, products.data());
    must(kernels->weighted_sum(x, y, static_cast<int64_t>(a.size()), sums, 2, 1, nullptr),
         "weighted_sum");
    const std::vector<float> result = from_gpu(x, a.size());
    const auto weight = [&](double own, double norm) {
      return norm == 0 ? 1.0 : 1.0 - own / 3.0 * products[0] / norm;
    };
    size_t wrong = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const volatile double left = a[i] * weight(2, products[1]);  // no fused multiplication
      const volatile double right = b[i] * weight(1, products[2]);
      wrong += result[i] != static_cast<float>(left + right);
    }
    check(wrong == 0, "weighted_sum: " + std::to_string(wrong) + " numbers");
    for (void* memory : {static_cast<void*>(x), static_cast<void*>(y), static_cast<void*>(sums)})
      cudaFree(memory);
  }
}

// Reductions of three ranks' inputs: the host computes the same source.
void check_combine() {
  constexpr int64_t kCount = 10007;
  std::mt19937_64 random(5);
  for (const Element element : kElements) {
    const bool is_complex = element == Element::kComplex64 || element == Element::kComplex128;
    const bool is_whole = element == Element::kUInt8 || element == Element::kInt8 ||
                          element == Element::kUInt16 || element == Element::kInt16 ||
                          element == Element::kUInt32 || element == Element::kInt32 ||
                          element == Element::kUInt64 || element == Element::kInt64;
    for (const Combine op : {Combine::kSum, Combine::kMin, Combine::kMax, Combine::kProduct,
                             Combine::kAnd, Combine::kOr, Combine::kXor}) {
      const bool bitwise = op >= Combine::kAnd;
      if (bitwise && !is_whole && element != Element::kBool) continue;
      if (is_complex && op != Combine::kSum && op != Combine::kProduct) continue;
      for (const bool scaled : {false, true}) {
        if (scaled && (bitwise || element == Element::kBool)) continue;
        Combination c;
        c.count = kCount;
        c.rank = 1;
        c.size = 3;
        c.element = element;
        c.op = op;
        c.prescale = scaled ? 0.3 : 1;
        c.factor = scaled ? 1.7 : 1;
        c.divisor = scaled && is_whole ? 3 : 1;
        c.round_first = scaled ? 1 : 0;
        with_format(element, [&](auto format) {
          using Format = decltype(format);
          using Stored = typename Format::Stored;
          constexpr size_t kBytes = kCount * sizeof(Stored);
          std::vector<uint64_t> words(3 * kBytes / 8 + 1);
          for (uint64_t& word : words) word = random();
          std::vector<Stored> inputs(3 * kCount), expected(kCount);
          std::memcpy(inputs.data(), words.data(), 3 * kBytes);
          c.stride = kBytes;
          c.others = inputs.data();
          c.own = inputs.data() + kCount;
          c.out = expected.data();
          for (int64_t i = 0; i < kCount; ++i) combine_one<Format>(c, i);
          Stored* const from = on_gpu(inputs.size(), inputs.data());
          c.others = from;
          c.own = c.out = from + kCount;  // in place
          must(kernels->combine(&c, nullptr), "combine");
          const std::vector<Stored> result = from_gpu(from + kCount, kCount);
          check(std::memcmp(result.data(), expected.data(), kBytes) == 0,
                "combine: element " + std::to_string(static_cast<int>(element)) + ", op " +
                    std::to_string(static_cast<int>(op)) + (scaled ? ", scaled" : ""));
          cudaFree(from);
        });
      }
    }
  }
}

template <typename Function>
double best_seconds(Function function) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  double best = 1e9;
  for (int turn = 0; turn < 30; ++turn) {
    cudaEventRecord(begin);
    function();
    cudaEventRecord(end);
    must(cudaEventSynchronize(end), "measuring");
    float milliseconds = 0;
    cudaEventElapsedTime(&milliseconds, begin, end);
    best = std::fmin(best, milliseconds * 1e-3);
  }
  return best;
}

// Bits as they are, from and to places of every alignment, and nothing beside them.
void check_bits() {
  constexpr size_t kRoom = 200000;
  std::vector<uint8_t> values(kRoom);
  for (size_t i = 0; i < kRoom; ++i) values[i] = static_cast<uint8_t>(i * 7 + i / 251);
  uint8_t* const from = on_gpu(kRoom, values.data());
  const std::pair<Format, int> units[] = {
      {Format::kBytes, 1}, {Format::kBFloat16, 2}, {Format::kFloat32, 4}};
  for (const auto& [format, unit] : units) {
    const std::vector<uint8_t> empty(kRoom, 0xee);
    uint8_t* const to = on_gpu(kRoom, empty.data());
    std::vector<uint8_t> expected = empty;
    std::vector<Copy> copies;
    size_t source = 0, target = 16;
    for (int i = 0; target < kRoom - 70000; ++i) {
      const int64_t count = i == 0 ? 8192 : i == 1 ? 8193 : 1 + 13 * i % 400;
      const size_t bytes = static_cast<size_t>(count * unit);
      copies.push_back({from + source, to + target, count});
      std::memcpy(expected.data() + target, values.data() + source, bytes);
      source = (source + static_cast<size_t>(unit * (i % 5))) % 60000;
      target += bytes + static_cast<size_t>(unit * (1 + i % 17));
      target = (target + static_cast<size_t>(unit) - 1) / static_cast<size_t>(unit) *
               static_cast<size_t>(unit);
      if (i % 2 == 0) target = (target + 15) / 16 * 16;
    }
    for (const Table& table : plan(copies, static_cast<size_t>(unit), static_cast<size_t>(unit)))
      must(kernels->copy(&table, format, format, 1.0f, nullptr), "copy");
    check(from_gpu(to, kRoom) == expected, "copied bits of " + std::to_string(unit) + " bytes");
    cudaFree(to);
  }
  cudaFree(from);
}

// 102 MB in 161 tensors, as the gradients of ResNet-50: many small ones, a few of 9 MB; each where
// an allocator has put it, and one buffer.
template <typename T>
void measure(Format format, const char* name) {
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (int i = 0; i < 161; ++i) {
    sizes.push_back(i % 3 != 0 ? 64 << (i % 6) : 4096 << (i % 10));
    total += sizes.back();
  }
  sizes.back() += std::max<int64_t>(0, static_cast<int64_t>(102228128 / sizeof(T)) - total);
  total = 0;
  for (const int64_t size : sizes) total += size;
  T* const buffer = on_gpu<T>(static_cast<size_t>(total));
  T* const other = on_gpu<T>(static_cast<size_t>(total));
  std::vector<Copy> in, out;
  std::vector<T*> tensors;
  for (int64_t begin = 0; const int64_t size : sizes) {
    tensors.push_back(on_gpu<T>(static_cast<size_t>(size)));
    in.push_back({tensors.back(), buffer + begin, size});
    out.push_back({buffer + begin, tensors.back(), size});
    begin += size;
  }
  const double bytes = 2.0 * sizeof(T) * static_cast<double>(total);
  const double plain = best_seconds([&] {
    cudaMemcpyAsync(other, buffer, sizeof(T) * static_cast<size_t>(total),
                    cudaMemcpyDeviceToDevice);
  });
  std::printf("%s: plain copy of %.0f MB: %.0f GB/s\n", name, bytes / 2e6, bytes / plain * 1e-9);
  const std::tuple<const char*, decltype(&in), float> moves[] = {
      {"pack", &in, 1.0f}, {"pack with scale", &in, 0.5f}, {"unpack", &out, 1.0f}};
  for (const auto& [what, copies, factor] : moves) {
    const std::vector<Table> tables = plan(*copies, sizeof(T), sizeof(T));
    const double taken = best_seconds([&] {
      for (const Table& table : tables)
        must(kernels->copy(&table, format, format, factor, nullptr), "copy");
    });
    std::printf("%s: %s, 161 tensors: %.0f GB/s, %.0f %% of the copy\n", name, what,
                bytes / taken * 1e-9, 100 * plain / taken);
  }
  for (T* const tensor : tensors) cudaFree(tensor);
  cudaFree(buffer);
  cudaFree(other);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return std::printf("gpu_kernels_check PLUGIN [--short]\n"), 2;
  void* const plugin = dlopen(argv[1], RTLD_NOW);
  if (plugin == nullptr) return std::printf("%s\n", dlerror()), 1;
  const auto get = reinterpret_cast<GetKernelFunctions>(dlsym(plugin, "rueda_cuda_kernels"));
  kernels = get == nullptr ? nullptr : get(kKernelsVersion);
  if (kernels == nullptr) return std::printf("%s is of another version\n", argv[1]), 1;
  int count = 0;
  if (const auto error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0)
    return std::printf("no GPU: %s\n", cudaGetErrorString(error)), 77;
  check_copy<float>(Format::kFloat32, "float32", 1.0f);
  check_copy<__half>(Format::kFloat16, "float16", 0.3f);
  check_copy<__nv_bfloat16>(Format::kBFloat16, "bfloat16", 1.0f / 3);
  check_copy<__nv_fp8_e4m3>(Format::kFloat8E4M3, "float8_e4m3", 1.0f);
  check_copy<__nv_fp8_e5m2>(Format::kFloat8E5M2, "float8_e5m2", 1.0f);
  check_bits();
  check_int8();
  check_products();
  check_weighted_sum();
  check_combine();
  if (argc == 2) {
    measure<float>(Format::kFloat32, "float32");
    measure<__nv_bfloat16>(Format::kBFloat16, "bfloat16");
  }
  std::printf("%s\n", failures == 0 ? "kernels are right" : "kernels are WRONG");
  return failures == 0 ? 0 : 1;
}
