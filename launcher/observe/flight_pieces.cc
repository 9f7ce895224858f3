#include "launcher/observe/flight_pieces.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "collectives/host/fence.h"

namespace rueda::launcher {
namespace {

using flight::kWord;
using flight::PlanEntry;
using flight::Record;

constexpr size_t kRecordsInPiece = 64;
constexpr size_t kEntriesInPiece = 128;
constexpr uint64_t kRecent = 128;       // records
constexpr uint64_t kRecentBatches = 4;  // of step plans; with all their members
static_assert(flight::kRecords % kRecordsInPiece == 0 &&
              flight::kTemplates % kRecordsInPiece == 0 &&
              flight::kPlanEntries % kEntriesInPiece == 0);

uint64_t load(const std::byte* at, std::memory_order order = std::memory_order_relaxed) {
  auto* word = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(at));
  return std::atomic_ref<uint64_t>(*word).load(order);
}

FlightPiece copy(ByteView memory, size_t offset, size_t size) {
  FlightPiece piece{offset, std::string(size, '\0')};
  for (size_t at = 0; at < size; at += kWord) {
    const uint64_t word = load(memory.data() + offset + at);
    std::memcpy(piece.bytes.data() + at, &word, kWord);
  }
  return piece;
}

// A record that was written meanwhile loses its stamp, and so is none.
FlightPiece copy_records(ByteView memory, size_t offset) {
  FlightPiece piece = copy(memory, offset, kRecordsInPiece * sizeof(Record));
  host::seqlock_fence(std::memory_order_acquire);
  for (size_t at = 0; at < piece.bytes.size(); at += sizeof(Record)) {
    uint64_t stamp = 0;
    std::memcpy(&stamp, piece.bytes.data() + at, kWord);
    if (load(memory.data() + offset + at) != stamp) std::memset(piece.bytes.data() + at, 0, kWord);
  }
  return piece;
}

bool is_empty(const FlightPiece& piece) {
  return std::all_of(piece.bytes.begin(), piece.bytes.end(), [](char c) { return c == 0; });
}

template <typename T>
T item(const FlightPiece& piece, size_t index) {
  T value;
  std::memcpy(&value, piece.bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

bool has_waiting(const FlightPiece& records) {
  for (size_t i = 0; i < kRecordsInPiece; ++i) {
    const auto record = item<Record>(records, i);
    if (record.stamp != 0 && record.state != 0 &&
        record.state < static_cast<uint8_t>(flight::State::kDone)) {
      return true;
    }
  }
  return false;
}

// Pieces of a ring that hold its last `count` entries.
std::set<size_t> last_pieces(uint64_t written, uint64_t count, size_t ring, size_t in_piece) {
  std::set<size_t> pieces;
  count = std::min({count, written, uint64_t{ring}});
  for (uint64_t n = written - count; n < written; ++n) pieces.insert(n % ring / in_piece);
  return pieces;
}

}  // namespace

std::vector<FlightPiece> flight_pieces(ByteView memory, Detail detail) {
  const bool whole = detail == Detail::kWhole;
  std::vector<FlightPiece> pieces;
  const auto add = [&](FlightPiece piece) {
    if (!is_empty(piece)) pieces.push_back(std::move(piece));
  };
  if (memory.size() < flight::kTotalBytes) return pieces;
  add(copy(memory, 0, sizeof(flight::Header)));
  if (pieces.empty()) return pieces;
  add(copy(memory, flight::kStatsOffset, sizeof(stats::Page)));
  if (detail == Detail::kVitals) return pieces;
  const auto header = item<flight::Header>(pieces.front(), 0);
  if (const size_t sites = std::min<uint64_t>(header.sites, flight::kSites); sites > 0)
    add(copy(memory, flight::kSitesOffset, sites * sizeof(flight::Site)));

  const auto recent = last_pieces(header.submitted, kRecent, flight::kRecords, kRecordsInPiece);
  for (size_t n = 0; n < flight::kRecords / kRecordsInPiece; ++n) {
    FlightPiece piece =
        copy_records(memory, flight::kRecordsOffset + n * kRecordsInPiece * sizeof(Record));
    if (whole || recent.contains(n) || has_waiting(piece)) add(std::move(piece));
  }

  const auto batches =
      last_pieces(header.planned, kRecentBatches, flight::kPlanEntries, kEntriesInPiece);
  std::set<size_t> members;  // pieces of templates
  for (size_t n = 0; n < flight::kPlanEntries / kEntriesInPiece; ++n) {
    if (!whole && !batches.contains(n)) continue;
    FlightPiece piece = copy(memory, flight::kPlanOffset + n * kEntriesInPiece * sizeof(PlanEntry),
                             kEntriesInPiece * sizeof(PlanEntry));
    for (size_t i = 0; i < kEntriesInPiece; ++i) {
      const auto entry = item<PlanEntry>(piece, i);
      const uint64_t count = std::min<uint64_t>(entry.members & 0xffff, flight::kTemplates);
      for (uint64_t m = 0; m < count; ++m)
        members.insert(((entry.members >> 16) + m) % flight::kTemplates / kRecordsInPiece);
    }
    add(std::move(piece));
  }
  for (size_t n = 0; n < flight::kTemplates / kRecordsInPiece; ++n) {
    if (!whole && !members.contains(n)) continue;
    add(copy_records(memory, flight::kTemplatesOffset + n * kRecordsInPiece * sizeof(Record)));
  }
  return pieces;
}

Result<FlightMirror> FlightMirror::make() {
  void* at = mmap(nullptr, flight::kTotalBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                  -1, 0);
  if (at == MAP_FAILED) return errno_status("cannot map memory for a flight recorder", errno);
  return FlightMirror(static_cast<std::byte*>(at));
}

FlightMirror::FlightMirror(FlightMirror&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)) {}

FlightMirror::~FlightMirror() {
  if (base_ != nullptr) munmap(base_, flight::kTotalBytes);
}

Status FlightMirror::put(const FlightPiece& piece) {
  const size_t size = piece.bytes.size();
  if (size > flight::kTotalBytes || piece.offset > flight::kTotalBytes - size ||
      piece.offset % kWord != 0 || size % kWord != 0) {
    return Status(Code::kDataLoss, "a piece of a flight recorder lies outside of its memory");
  }
  std::memcpy(base_ + piece.offset, piece.bytes.data(), size);
  return {};
}

}  // namespace rueda::launcher
