#include "launcher/tools/bench/cases.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <type_traits>

#include "launcher/tools/bench/gradient_sets.h"

namespace rueda::bench {
namespace {

constexpr std::array kOperations = {"allreduce", "allgather", "reducescatter", "broadcast",
                                    "alltoall",  "gradients", "limit"};
constexpr std::array kDataTypes = {"f32", "f16", "bf16", "i32", "f64"};
constexpr uint64_t kMostBytes = uint64_t{16} << 30;

template <size_t N>
int index_of(const std::array<const char*, N>& names, const std::string& word) {
  const auto found = std::find(names.begin(), names.end(), word);
  return found == names.end() ? -1 : static_cast<int>(found - names.begin());
}

template <size_t N>
std::string list_of(const std::array<const char*, N>& names) {
  std::string text;
  for (const char* name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

// The number `value` < 2048 as the dtype writes it.
uint64_t encode(DataType dtype, uint32_t value) {
  switch (dtype) {
    case DataType::kF32: return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DataType::kF64: return std::bit_cast<uint64_t>(static_cast<double>(value));
    case DataType::kBf16: return std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16;
    case DataType::kI32: return value;
    case DataType::kF16: {
      if (value == 0) return 0;
      const uint32_t exponent = 31u - static_cast<uint32_t>(std::countl_zero(value));
      return ((exponent + 15) << 10) | ((value << (10 - exponent)) & 0x3ff);
    }
  }
  return 0;
}

// Element `index` of `rank`'s input. The shifts make elements 4, 32, ... apart differ, so that a
// piece in the wrong place shows.
uint32_t value_at(uint64_t index, int rank) {
  const uint64_t mixed = index ^ (index >> 2) ^ (index >> 5) ^ (index >> 9) ^ (index >> 14);
  return (static_cast<uint32_t>(mixed) + 3 * static_cast<uint32_t>(rank)) & 3;
}

// Calls visit(word pointer) with the dtype's unsigned word.
template <typename Visit>
void with_words(DataType dtype, const Visit& visit) {
  switch (size_of(dtype)) {
    case 2: visit(uint16_t{}); break;
    case 4: visit(uint32_t{}); break;
    default: visit(uint64_t{}); break;
  }
}

}  // namespace

const char* name_of(Operation operation) { return kOperations[static_cast<size_t>(operation)]; }
const char* name_of(DataType dtype) { return kDataTypes[static_cast<size_t>(dtype)]; }

size_t size_of(DataType dtype) {
  switch (dtype) {
    case DataType::kF16:
    case DataType::kBf16: return 2;
    case DataType::kF64: return 8;
    default: return 4;
  }
}

Result<Operation> parse_operation(const std::string& word) {
  const int index = index_of(kOperations, word);
  if (index < 0)
    return invalid_argument("operation '" + word + "': expected one of " + list_of(kOperations));
  return static_cast<Operation>(index);
}

Result<DataType> parse_dtype(const std::string& word) {
  const int index = index_of(kDataTypes, word);
  if (index < 0)
    return invalid_argument("dtype '" + word + "': expected one of " + list_of(kDataTypes));
  return static_cast<DataType>(index);
}

Result<uint64_t> parse_bytes(const std::string& word) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const std::string unit(end, word.data() + word.size());
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (error != std::errc() || shift < 0 || number == 0 || number > (kMostBytes >> shift))
    return invalid_argument("size '" + word + "': expected bytes such as 4, 64K, 1M, at most 16G");
  return number << shift;
}

Result<Case> parse_case(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char letter : text) {
    if (letter == ':')
      words.emplace_back();
    else
      words.back() += letter;
  }
  if (words.size() != 4)
    return invalid_argument("case '" + text + "': expected OPERATION:DTYPE:MEMORY:BYTES");
  Case c;
  RUEDA_ASSIGN_OR_RETURN(c.operation, parse_operation(words[0]));
  RUEDA_ASSIGN_OR_RETURN(c.dtype, parse_dtype(words[1]));
  if (words[2] != "private" && words[2] != "arena")
    return invalid_argument("memory '" + words[2] + "': expected private or arena");
  c.arena = words[2] == "arena";
  if (c.operation == Operation::kGradients) {
    c.set = words[3];
    RUEDA_ASSIGN_OR_RETURN(const std::vector<uint64_t> counts, gradient_counts(c.set));
    for (const uint64_t count : counts) c.bytes += count * size_of(c.dtype);
    return c;
  }
  RUEDA_ASSIGN_OR_RETURN(c.bytes, parse_bytes(words[3]));
  if (c.bytes < size_of(c.dtype))
    return invalid_argument("case '" + text + "': smaller than one element");
  return c;
}

std::string text_of_bytes(uint64_t bytes) {
  const char* const units[] = {"", "K", "M", "G"};
  int unit = 0;
  while (unit < 3 && bytes >= 1024 && bytes % 1024 == 0) bytes /= 1024, ++unit;
  return std::to_string(bytes) + units[unit];
}

std::string text_of(const Case& c) {
  return std::string(name_of(c.operation)) + ":" + name_of(c.dtype) +
         (c.arena ? ":arena:" : ":private:") + (c.set.empty() ? text_of_bytes(c.bytes) : c.set);
}

Extent extent_of(const Case& c, int size) {
  const uint64_t all = std::max<uint64_t>(c.bytes / size_of(c.dtype), 1);
  const uint64_t ranks = static_cast<uint64_t>(size);
  const uint64_t each = std::max<uint64_t>(all / ranks, 1);
  switch (c.operation) {
    case Operation::kAllgather: return {each, each * ranks, false};
    case Operation::kReducescatter: return {each * ranks, each, false};
    case Operation::kAlltoall: return {each * ranks, each * ranks, false};
    case Operation::kLimit: {
      const uint64_t even = std::max<uint64_t>(all / 2, 1) * 2;
      return {even, even, true};
    }
    default: return {all, all, true};
  }
}

void fill_for_check(DataType dtype, void* data, uint64_t count, int rank) {
  with_words(dtype, [&](auto word) {
    using Word = decltype(word);
    Word table[4];
    for (uint32_t v = 0; v < 4; ++v) table[v] = static_cast<Word>(encode(dtype, v));
    for (uint64_t i = 0; i < count; ++i) static_cast<Word*>(data)[i] = table[value_at(i, rank)];
  });
}

void make_dirty(DataType dtype, void* data, uint64_t count, int rank) {
  with_words(dtype, [&](auto word) {
    using Word = decltype(word);
    const auto value = static_cast<Word>(encode(dtype, static_cast<uint32_t>(1 + rank % 4)));
    std::fill_n(static_cast<Word*>(data), count, value);
  });
}

uint64_t count_wrong(const Case& c, const void* data, uint64_t count, int rank, int size) {
  const Extent extent = extent_of(c, size);
  const uint64_t ranks = static_cast<uint64_t>(size);
  const auto expected = [&](uint64_t i) -> uint32_t {
    switch (c.operation) {
      case Operation::kAllgather:
        return value_at(i % extent.input, static_cast<int>(i / extent.input));
      case Operation::kBroadcast: return value_at(i, 0);
      case Operation::kAlltoall: {
        const uint64_t part = extent.input / ranks;
        return value_at(static_cast<uint64_t>(rank) * part + i % part, static_cast<int>(i / part));
      }
      case Operation::kLimit: {
        const uint64_t half = count / 2;
        return value_at(i % half, rank) + value_at(i % half + half, rank);
      }
      default: {
        const uint64_t at = c.operation == Operation::kReducescatter
                                ? static_cast<uint64_t>(rank) * extent.output + i
                                : i;
        uint32_t sum = 0;
        for (int from = 0; from < size; ++from) sum += value_at(at, from);
        return sum;
      }
    }
  };
  uint64_t wrong = 0;
  with_words(c.dtype, [&](auto word) {
    using Word = decltype(word);
    for (uint64_t i = 0; i < count; ++i)
      wrong += static_cast<const Word*>(data)[i] != static_cast<Word>(encode(c.dtype, expected(i)));
  });
  return wrong;
}

}  // namespace rueda::bench
