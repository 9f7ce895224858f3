// Every transport x collective x dtype x op x world size against exact expectations. The table at
// the end counts the cells that ran and lists those that cannot apply, with the reason.
#include <catch2/catch.hpp>

#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <tuple>

#include "tests/support/patterns.h"
#include "tests/support/thread_world.h"

namespace rueda::testing {
namespace {

using algorithms::NativeCommunicator;

std::vector<Kind> kinds() {
  std::vector<Kind> result(std::begin(kAllKinds), std::end(kAllKinds));
  if (!is_short()) result.insert(result.end(), {Kind::kLateTcp, Kind::kLatePairs, Kind::kStriped});
  return result;
}

// Layouts over hosts among them: tcp 2 x 1, 3 x 1, 5 x 1; pairs 2 + 1, 2 x 2, 3 x 2, 4 x 2; triples
// 3 + 2. The short form keeps 2 x 1, 3 x 1, 2 + 1 and 2 x 2.
std::vector<Rank> world_sizes(Kind kind) {
  if (is_short())
    return kind == Kind::kPairs ? std::vector<Rank>{3, 4} : std::vector<Rank>{1, 2, 3};
  if (kind == Kind::kLateTcp || kind == Kind::kStriped) return {3};
  if (kind == Kind::kLatePairs) return {4};
  if (kind == Kind::kPairs) return {1, 2, 3, 4, 5, 6, 8};
  return {1, 2, 3, 4, 5, 8};
}

std::vector<int64_t> counts() {
  // Nothing, one, not a multiple of anything, more than a window, more than all windows of small
  // settings.
  return is_short() ? std::vector<int64_t>{0, 1, 1000}
                    : std::vector<int64_t>{0, 1, 17, 1000, 40000};
}

Config small_windows() {
  Config config;
  config.chunk_bytes = 4096;  // many chunks, all stages, reuse of every window
  config.staging_buffers = 2;
  return config;
}

struct Table {
  std::map<std::string, int64_t> ran;
  std::map<std::string, std::string> not_applicable;
  ~Table() {
    int64_t total = 0;
    for (const auto& [cell, count] : ran) total += count;
    std::cout << "conformance: " << total << " cells ran\n";
    for (const auto& [cell, count] : ran) std::cout << "  " << cell << ": " << count << "\n";
    for (const auto& [cell, why] : not_applicable)
      std::cout << "  not applicable: " << cell << ": " << why << "\n";
  }
};

Table& table() {
  static Table instance;
  return instance;
}

void note(Kind kind, const char* collective) {
  ++table().ran[std::string(name_of(kind)) + " " + collective];
}

bool runs_here(Kind kind) {
  if (kind != Kind::kTcp6 || has_ipv6()) return true;
  table().not_applicable["tcp6, all cells"] = "this machine has no IPv6 loopback";
  return false;
}

// One world per (kind, size), its communicators, and a function run by every rank.
template <typename Function>
void with_ranks(Kind kind, Rank size, Function fn) {
  auto worlds = make_worlds(kind, size, small_windows());
  const auto errors = on_ranks(size, [&](Rank rank) {
    ThreadRank& world = *worlds[static_cast<size_t>(rank)];
    std::vector<Rank> everyone;
    for (Rank member = 0; member < size; ++member) everyone.push_back(member);
    NativeCommunicator communicator(world.group(std::move(everyone)));
    return fn(rank, world, communicator);
  });
  for (const std::string& error : errors) REQUIRE(error == "");
}

// What an allreduce of everybody's ramp must give. Ranks and kinds of connections share it.
// Threads: any.
const Bytes& wanted_sum(DType dtype, ReduceOp op, Rank size, int64_t count) {
  static std::mutex mutex;
  static std::map<std::tuple<DType, ReduceOp, Rank, int64_t>, Bytes> known;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = known.try_emplace({dtype, op, size, count});
  if (is_new) entry->second = to_bytes(dtype, reduced_ramp(dtype, op, size, count));
  return entry->second;
}

std::string expect(const Bytes& got, const Bytes& wanted, const std::string& cell) {
  if (got == wanted) return "";
  // The other ranks wait for this one until the test's time is over: say it at once.
  std::cerr << cell << ": wrong result\n";
  return cell + ": wrong result";
}

// The bitwise ones where kernels differ: of bools, and of integers, whose width does not matter.
std::vector<ReduceOp> tried_ops(DType dtype) {
  std::vector<ReduceOp> ops(std::begin(kElementwiseOps), std::end(kElementwiseOps));
  if (dtype == DType::kBool || dtype == DType::kInt32) {
    for (const ReduceOp op : kBitwiseOps) ops.push_back(op);
  }
  return ops;
}

std::string cell_name(const char* collective, DType dtype, ReduceOp op, int64_t count) {
  return std::string(collective) + " " + rueda::name_of(dtype) + " " + rueda::name_of(op) +
         " n=" + std::to_string(count);
}

TEST_CASE("allreduce gives every rank the same exact result", "[conformance]") {
  for (const Kind kind : kinds()) {
    if (!runs_here(kind)) continue;
    for (const Rank size : world_sizes(kind)) {
      INFO(name_of(kind) << " x " << size);
      with_ranks(
          kind, size,
          [&](Rank rank, ThreadRank& world, NativeCommunicator& communicator) -> std::string {
            for (const DType dtype : kHostReducedDTypes) {
              for (const ReduceOp op : tried_ops(dtype)) {
                const auto scaling = plan_scaling(dtype, op, 1.0, 1.0, size);
                if (!scaling.ok()) {
                  if (rank == 0) {
                    table().not_applicable["allreduce " + std::string(rueda::name_of(dtype)) + " " +
                                           rueda::name_of(op)] = scaling.status().message();
                  }
                  continue;
                }
                for (const int64_t count : counts()) {
                  const Bytes in = to_bytes(dtype, ramp_values(rank, count, op));
                  Bytes out(in.size(), std::byte{0xee});
                  must(drive(world, communicator,
                             allreduce(communicator, {Part{in.data(), out.data(), count}}, dtype,
                                       op, scaling.value())));
                  const std::string error = expect(out, wanted_sum(dtype, op, size, count),
                                                   cell_name("allreduce", dtype, op, count));
                  if (!error.empty()) return error;
                  if (rank == 0) note(kind, "allreduce");
                }
              }
            }
            return "";
          });
    }
  }
}

TEST_CASE("a batch of tensors is reduced as if each were alone, in place too", "[conformance]") {
  const std::vector<int64_t> sizes = {3, 0, 1, 700, 64, 5000, 1, 33};
  for (const Kind kind : kinds()) {
    if (!runs_here(kind)) continue;
    for (const Rank size : world_sizes(kind)) {
      INFO(name_of(kind) << " x " << size);
      with_ranks(
          kind, size,
          [&](Rank rank, ThreadRank& world, NativeCommunicator& communicator) -> std::string {
            for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
              const auto scaling = must(plan_scaling(dtype, ReduceOp::kSum, 1.0, 1.0, size));
              std::vector<Bytes> tensors;
              std::vector<Part> parts;
              for (const int64_t count : sizes) {
                tensors.push_back(to_bytes(dtype, ramp_values(rank, count, ReduceOp::kSum)));
              }
              for (size_t i = 0; i < sizes.size(); ++i)
                parts.push_back({tensors[i].data(), tensors[i].data(), sizes[i]});
              must(drive(world, communicator,
                         allreduce(communicator, parts, dtype, ReduceOp::kSum, scaling)));
              for (size_t i = 0; i < sizes.size(); ++i) {
                const std::string error =
                    expect(tensors[i],
                           to_bytes(dtype, reduced_ramp(dtype, ReduceOp::kSum, size, sizes[i])),
                           cell_name("fused allreduce", dtype, ReduceOp::kSum, sizes[i]));
                if (!error.empty()) return error;
              }
              if (rank == 0) note(kind, "fused allreduce");
            }
            return "";
          });
    }
  }
}

TEST_CASE("reducescatter gives every rank its own rows", "[conformance]") {
  for (const Kind kind : kinds()) {
    if (!runs_here(kind)) continue;
    for (const Rank size : world_sizes(kind)) {
      INFO(name_of(kind) << " x " << size);
      with_ranks(
          kind, size,
          [&](Rank rank, ThreadRank& world, NativeCommunicator& communicator) -> std::string {
            for (const DType dtype : kHostReducedDTypes) {
              for (const ReduceOp op : tried_ops(dtype)) {
                const auto scaling = plan_scaling(dtype, op, 1.0, 1.0, size);
                if (!scaling.ok()) continue;  // bool average, listed with allreduce
                for (const int64_t count : counts()) {
                  std::vector<int64_t> shards;
                  for (Rank r = 0; r < size; ++r) shards.push_back(split_rows(count, r, size));
                  const Bytes in = to_bytes(dtype, ramp_values(rank, count, op));
                  Bytes out(static_cast<size_t>(shards[static_cast<size_t>(rank)]) *
                            size_of(dtype));
                  must(drive(world, communicator,
                             reducescatter(communicator, in.data(), out.data(), shards, dtype, op,
                                           scaling.value())));
                  const Bytes& whole = wanted_sum(dtype, op, size, count);
                  const auto begin = whole.begin() + split_begin(count, rank, size) *
                                                         static_cast<int64_t>(size_of(dtype));
                  const std::string error =
                      expect(out, Bytes(begin, begin + static_cast<int64_t>(out.size())),
                             cell_name("reducescatter", dtype, op, count));
                  if (!error.empty()) return error;
                  if (rank == 0) note(kind, "reducescatter");
                }
              }
            }
            return "";
          });
    }
  }
}

// Bytes that tell where they come from.
Bytes stamped(Rank from, Rank to, int64_t bytes) {
  Bytes result(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < bytes; ++i)
    result[static_cast<size_t>(i)] = static_cast<std::byte>((from * 31 + to * 17 + i) & 0xff);
  return result;
}

TEST_CASE("allgather joins unequal blocks in rank order, several at once", "[conformance]") {
  for (const Kind kind : kinds()) {
    if (!runs_here(kind)) continue;
    for (const Rank size : world_sizes(kind)) {
      INFO(name_of(kind) << " x " << size);
      with_ranks(
          kind, size,
          [&](Rank rank, ThreadRank& world, NativeCommunicator& communicator) -> std::string {
            for (const std::vector<int64_t>& unit :
                 {std::vector<int64_t>{1}, {0}, {4}, {70000}, {3, 0, 1000}}) {
              std::vector<Gathered> parts;
              std::vector<Bytes> ins;
              std::vector<Bytes> outs;
              std::vector<Bytes> wanted;
              for (const int64_t bytes : unit) {
                Gathered part;
                Bytes all;
                for (Rank r = 0; r < size; ++r) {
                  const int64_t block = bytes * ((r + 1) % 3);  // the third rank has nothing
                  part.bytes.push_back(block);
                  const Bytes stamp = stamped(r, 0, block);
                  all.insert(all.end(), stamp.begin(), stamp.end());
                }
                ins.push_back(stamped(rank, 0, part.bytes[static_cast<size_t>(rank)]));
                outs.emplace_back(all.size());
                wanted.push_back(std::move(all));
                parts.push_back(std::move(part));
              }
              for (size_t i = 0; i < parts.size(); ++i) {
                parts[i].in = ins[i].data();
                parts[i].out = outs[i].data();
              }
              must(drive(world, communicator, allgather(communicator, parts)));
              if (outs != wanted) return "allgather: wrong result";
              if (rank == 0) note(kind, "allgather");
            }
            return "";
          });
    }
  }
}

TEST_CASE("broadcast reaches every rank from every root", "[conformance]") {
  for (const Kind kind : kinds()) {
    if (!runs_here(kind)) continue;
    for (const Rank size : world_sizes(kind)) {
      INFO(name_of(kind) << " x " << size);
      with_ranks(
          kind, size,
          [&](Rank rank, ThreadRank& world, NativeCommunicator& communicator) -> std::string {
            for (Rank root = 0; root < size; ++root) {
              for (const int64_t bytes : {0, 1, 100, 70000, 1300000}) {
                if (is_short() && bytes > 100000) continue;
                const Bytes wanted = stamped(root, 1, bytes);
                Bytes data = rank == root ? wanted : Bytes(static_cast<size_t>(bytes));
                must(drive(world, communicator,
                           broadcast(communicator, root, {{data.data(), data.data(), bytes}})));
                if (data != wanted) return "broadcast: wrong result";
                Bytes first = rank == root ? stamped(root, 2, 5) : Bytes(5);
                Bytes second =
                    rank == root ? stamped(root, 3, bytes) : Bytes(static_cast<size_t>(bytes));
                must(drive(world, communicator,
                           broadcast(communicator, root,
                                     {{first.data(), first.data(), 5},
                                      {second.data(), second.data(), bytes}})));
                if (first != stamped(root, 2, 5) || second != stamped(root, 3, bytes))
                  return "fused broadcast: wrong result";
                if (rank == 0) note(kind, "broadcast");
              }
            }
            return "";
          });
    }
  }
}

TEST_CASE("alltoall sends every block to its addressee", "[conformance]") {
  for (const Kind kind : kinds()) {
    if (!runs_here(kind)) continue;
    for (const Rank size : world_sizes(kind)) {
      INFO(name_of(kind) << " x " << size);
      with_ranks(
          kind, size,
          [&](Rank rank, ThreadRank& world, NativeCommunicator& communicator) -> std::string {
            for (const int64_t unit : {0, 1, 100, 30000}) {
              const auto block = [&](Rank from, Rank to) { return unit * ((from + 2 * to) % 4); };
              std::vector<int64_t> bytes;
              for (Rank from = 0; from < size; ++from) {
                for (Rank to = 0; to < size; ++to) bytes.push_back(block(from, to));
              }
              Bytes in;
              Bytes wanted;
              for (Rank r = 0; r < size; ++r) {
                const Bytes out_block = stamped(rank, r, block(rank, r));
                in.insert(in.end(), out_block.begin(), out_block.end());
                const Bytes in_block = stamped(r, rank, block(r, rank));
                wanted.insert(wanted.end(), in_block.begin(), in_block.end());
              }
              Bytes out(wanted.size());
              must(
                  drive(world, communicator, alltoall(communicator, in.data(), out.data(), bytes)));
              if (out != wanted) return "alltoall: wrong result";
              if (rank == 0) note(kind, "alltoall");
            }
            return "";
          });
    }
  }
}

}  // namespace
}  // namespace rueda::testing
