// What can be sent: element types, shapes, reduce operations.
#ifndef RUEDA_TENSOR_HPP_
#define RUEDA_TENSOR_HPP_

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "rueda/error.hpp"
#include "rueda/half.hpp"
#include "rueda/rueda.h"

namespace rueda {
inline namespace api1 {

// Average divides by the number of ranks; for integers truncating toward zero. For bool, sum is or
// and product is and.
enum class ReduceOp : std::int32_t {
  kAverage = RUEDA_AVERAGE,
  kSum = RUEDA_SUM,
  kAdasum = RUEDA_ADASUM,  // allreduce of floats only: docs/numerics.md
  kMin = RUEDA_MIN,
  kMax = RUEDA_MAX,
  kProduct = RUEDA_PRODUCT,
  kBitwiseAnd = RUEDA_BITWISE_AND,  // these of integers and bool, unscaled
  kBitwiseOr = RUEDA_BITWISE_OR,
  kBitwiseXor = RUEDA_BITWISE_XOR,
};

using Shape = std::vector<std::int64_t>;

// Characters are no numbers.
template <typename T>
concept Character = std::same_as<T, char> || std::same_as<T, wchar_t> || std::same_as<T, char8_t> ||
                    std::same_as<T, char16_t> || std::same_as<T, char32_t>;

// The rueda_dtype of a C++ type, or -1 where there is none. std::byte travels as uint8.
template <typename T>
constexpr std::int32_t dtype_or_none() {
  if constexpr (std::same_as<T, bool>) {
    return RUEDA_BOOL;
  } else if constexpr (std::same_as<T, std::byte> || std::same_as<T, std::uint8_t>) {
    return RUEDA_UINT8;
  } else if constexpr (std::same_as<T, Float16>) {
    return RUEDA_FLOAT16;
  } else if constexpr (std::same_as<T, BFloat16>) {
    return RUEDA_BFLOAT16;
  } else if constexpr (std::same_as<T, float>) {
    return RUEDA_FLOAT32;
  } else if constexpr (std::same_as<T, double>) {
    return RUEDA_FLOAT64;
  } else if constexpr (std::same_as<T, std::int8_t>) {
    return RUEDA_INT8;
  } else if constexpr (std::same_as<T, std::complex<float>>) {
    return RUEDA_COMPLEX64;
  } else if constexpr (std::same_as<T, std::complex<double>>) {
    return RUEDA_COMPLEX128;
  } else if constexpr (!std::integral<T> || Character<T>) {
    return -1;
  } else if constexpr (sizeof(T) == 2) {
    return std::signed_integral<T> ? RUEDA_INT16 : RUEDA_UINT16;
  } else if constexpr (sizeof(T) == 4) {
    return std::signed_integral<T> ? RUEDA_INT32 : RUEDA_UINT32;
  } else if constexpr (sizeof(T) == 8) {
    return std::signed_integral<T> ? RUEDA_INT64 : RUEDA_UINT64;
  } else {
    return -1;
  }
}

template <typename T>
concept Element = dtype_or_none<std::remove_cv_t<T>>() >= 0;

// The rueda_dtype of an element type: dtype_of<float> == RUEDA_FLOAT32.
template <Element T>
inline constexpr rueda_dtype dtype_of =
    static_cast<rueda_dtype>(dtype_or_none<std::remove_cv_t<T>>());

// Contiguous elements that somebody else owns: std::span, std::array&, std::vector&, T(&)[n]. A
// temporary container is refused: it would be gone before the operation has ended.
template <typename R>
concept Input = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                std::ranges::borrowed_range<R> && Element<std::ranges::range_value_t<R>>;
template <typename R>
concept InOut =
    Input<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

// What most operations take besides their data; use designated initialisers:
//   hvd.allreduce(x, rueda::ReduceOp::kSum, {.name = "x", .shape = {2, 3}});
struct Options {
  std::string name;        // "": the n-th unnamed operation of its kind on this rank
  Shape shape = {};        // of the input, row major; {}: one dimension
  double prescale = 1.0;   // allreduce, reducescatter: times the input, before
  double postscale = 1.0;  // and times the result, after the reduction
  int process_set = 0;     // who takes part: all, add_process_set or open_group
};

namespace detail {

template <Input R>
auto view(R&& data) {
  using T = std::remove_reference_t<std::ranges::range_reference_t<R>>;
  return std::span<T>(std::ranges::data(data), std::ranges::size(data));
}

// One rueda_op with the memory that its pointers mean. Moving it would break them, so it stays put.
class Operation {
 public:
  Operation(rueda_kind kind, const Options& options) : options_(options) {
    op_.kind = kind;
    op_.name = options_.name.empty() ? nullptr : options_.name.c_str();
    op_.prescale = options_.prescale;
    op_.postscale = options_.postscale;
    op_.process_set = options_.process_set;
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  template <Element T>
  Operation& input(std::span<T> data) {
    op_.input = data.data();
    return tensor<T>(data.size());
  }
  template <Element T>
  Operation& output(std::span<T> data) {
    op_.output = data.data();
    return *this;
  }
  // For allgather and alltoall, whose rows have to be exactly those that the output has room for.
  // After input().
  template <Element T>
  Operation& output_rows_of(std::span<T> data) {
    if (dtype_of<T> != op_.dtype)
      throw Error(RUEDA_INVALID_ARGUMENT, "'" + options_.name + "': output is of another type");
    std::size_t row = 1;
    for (std::size_t i = 1; i < options_.shape.size(); ++i)
      row *= static_cast<std::size_t>(options_.shape[i]);
    if (row == 0 ? !data.empty() : data.size() % row != 0) {
      throw Error(RUEDA_INVALID_ARGUMENT,
                  "'" + options_.name + "': the output's " + std::to_string(data.size()) +
                      " elements are no whole rows of " + std::to_string(row));
    }
    op_.output_rows = row == 0 ? 0 : static_cast<std::int64_t>(data.size() / row);
    return output(data);
  }
  template <Element T>
  Operation& tensor(std::size_t count) {
    op_.dtype = dtype_of<T>;
    if (options_.shape.empty()) options_.shape = {static_cast<std::int64_t>(count)};
    std::int64_t elements = 1;
    for (const std::int64_t extent : options_.shape) elements *= extent;
    if (elements != static_cast<std::int64_t>(count)) {
      throw Error(RUEDA_INVALID_ARGUMENT, "'" + options_.name + "': the shape has " +
                                              std::to_string(elements) + " elements, the data " +
                                              std::to_string(count));
    }
    op_.shape = options_.shape.data();
    op_.ndim = static_cast<std::int32_t>(options_.shape.size());
    return *this;
  }
  Operation& splits(std::span<const std::int64_t> rows) {
    op_.splits = rows.data();
    op_.splits_count = static_cast<std::int32_t>(rows.size());
    return *this;
  }
  Operation& reduce(ReduceOp op) {
    op_.reduce_op = static_cast<std::int32_t>(op);
    return *this;
  }
  Operation& root(int rank) {
    op_.root = rank;
    return *this;
  }
  Operation& peer(int rank, std::uint32_t tag) {
    op_.peer = rank;
    op_.tag = tag;
    return *this;
  }
  const rueda_op& get() const { return op_; }

 private:
  Options options_;
  rueda_op op_ = RUEDA_OP_INIT;
};

}  // namespace detail
}  // namespace api1
}  // namespace rueda

#endif  // RUEDA_TENSOR_HPP_
