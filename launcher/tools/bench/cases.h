// What is measured: one operation on tensors of one size, and how its result is checked.
//
// Pure values. A case is written OPERATION:DTYPE:MEMORY:BYTES, "allreduce:f32:private:64K"; a set
// of gradients is gradients:f32:private:resnet50.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/base/status.h"

namespace rueda::bench {

enum class Operation {
  kAllreduce,
  kAllgather,
  kReducescatter,
  kBroadcast,
  kAlltoall,
  kGradients,  // allreduces of many tensors, submitted last one first, then waited for
  kLimit,      // no communication: every rank reads and writes `bytes` bytes of its own once
};
enum class DataType { kF32, kF16, kBf16, kI32, kF64 };

struct Case {
  Operation operation = Operation::kAllreduce;
  DataType dtype = DataType::kF32;
  bool arena = false;  // tensors live in memory that the ranks share
  // Of a rank's larger buffer: what allgather gives, what reducescatter takes, one of two equal
  // ones elsewhere. Of gradients: their sum.
  uint64_t bytes = 0;
  std::string set;  // of gradients: "resnet50"
};

// InvalidArgument with one line that names the wrong word.
Result<Case> parse_case(const std::string& text);
Result<Operation> parse_operation(const std::string& word);
Result<DataType> parse_dtype(const std::string& word);
// "4", "64K", "1M", "1G": powers of 1024; at most 16 GiB, at least 1.
Result<uint64_t> parse_bytes(const std::string& word);

const char* name_of(Operation operation);
const char* name_of(DataType dtype);
std::string text_of(const Case& c);
std::string text_of_bytes(uint64_t bytes);
size_t size_of(DataType dtype);

// Elements of one rank's input and output of the case, for an operation of one tensor. The input is
// rounded down to what divides among the ranks, never below one element each.
struct Extent {
  uint64_t input = 0, output = 0;
  bool in_place = false;
};
Extent extent_of(const Case& c, int size);

// Small whole numbers (0 to 3), so that the sum over 64 ranks is exact in every dtype.
void fill_for_check(DataType dtype, void* data, uint64_t count, int rank);
// Overwrites every byte with valid numbers, at memory speed.
void make_dirty(DataType dtype, void* data, uint64_t count, int rank);
// Number of elements of `data` that differ, bit by bit, from the operation's exact result on
// `rank`.
uint64_t count_wrong(const Case& c, const void* data, uint64_t count, int rank, int size);

}  // namespace rueda::bench
