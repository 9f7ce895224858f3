#include "collectives/host/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "collectives/base/memory_file.h"
#include "collectives/base/rounding.h"
#include "collectives/host/segment.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rueda::host {
namespace {

constexpr uint32_t kVersion = 8;
constexpr size_t kSleepWordOffset = round_up(sizeof(ArenaHeader), 128);
constexpr size_t kChannelsOffset = kSleepWordOffset + 2 * sizeof(SleepWord);

}  // namespace

size_t ArenaLayout::control_bytes() const {
  return round_up(channels() * sizeof(ChannelControl), 4096);
}
size_t ArenaLayout::staging_offset() const {
  return round_up(kChannelsOffset + channels() * sizeof(ChannelControl), 4096);
}
size_t ArenaLayout::rings_offset() const {
  return staging_offset() + channels() * buffers * chunk_bytes;
}
size_t ArenaLayout::heard_offset() const {
  return round_up(
      rings_offset() + static_cast<size_t>(local_size) * ByteRing::bytes_for(ring_bytes), 128);
}
size_t ArenaLayout::groups_offset() const {
  return round_up(heard_offset() + hosts * sizeof(std::atomic<int64_t>), 4096);
}
size_t ArenaLayout::group_bytes() const { return control_bytes() + group_buffer_bytes(); }
size_t ArenaLayout::group_buffer_bytes() const {
  return round_up(channels() * buffers * chunk_bytes, 4096);
}
size_t ArenaLayout::total_bytes() const {
  return groups_offset() + (kChannelGroups - 1) * group_bytes();
}

uint64_t ArenaLayout::hash() const {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a over the numbers that fix every offset
  for (const uint64_t number :
       {uint64_t{kVersion}, static_cast<uint64_t>(local_size), uint64_t{chunk_bytes},
        uint64_t{buffers}, uint64_t{ring_bytes}, uint64_t{hosts}, uint64_t{sizeof(ArenaHeader)},
        uint64_t{sizeof(ChannelControl)}, uint64_t{channels()}, uint64_t{kChannelGroups},
        uint64_t{sizeof(RingHeader)}}) {
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ ((number >> (8 * byte)) & 0xff)) * 1099511628211ull;
  }
  return hash;
}

Arena::Arena(UniqueFd fd, const ArenaLayout& layout, std::shared_ptr<SharedMapping> mapping,
             const ArenaHeader& header)
    : fd_(std::move(fd)), layout_(layout), header_(header), mapping_(std::move(mapping)) {}

Result<std::shared_ptr<Arena>> Arena::create(const ArenaLayout& layout, Rank local_rank,
                                             uint64_t epoch) {
  const size_t bytes = layout.total_bytes();
  RUEDA_ASSIGN_OR_RETURN(UniqueFd fd, memory_file("rueda-arena", "cannot make shared memory"));
  // Reserves the pages now (but those of further groups): later a shortage would be a SIGBUS.
  int error = ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ? errno : 0;
  const size_t used = layout.groups_offset();
  if (error == 0) error = posix_fallocate(fd.get(), 0, static_cast<off_t>(used));
  if (error != 0) {
    return errno_status("cannot reserve " + std::to_string(used) +
                            " bytes of shared memory (lower RUEDA_CHUNK_BYTES or "
                            "RUEDA_STAGING_BUFFERS, or free memory)",
                        error);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return errno_status("cannot seal shared memory", errno);
  RUEDA_ASSIGN_OR_RETURN(auto mapping, SharedMapping::of(fd.get(), bytes, {.dumped = true}));
  // The pages exist already (fallocate); this fills the page table, so that the first collective
  // takes no faults.
  madvise(mapping->base(), used, MADV_POPULATE_WRITE);
  // A core dump would make pages for all that further groups have not reserved.
  madvise(mapping->base() + used, bytes - used, MADV_DONTDUMP);
  auto* header = new (mapping->base()) ArenaHeader{};
  header->magic = ArenaHeader::kMagic;
  header->version = kVersion;
  header->local_rank = local_rank;
  header->layout_hash = layout.hash();
  header->total_bytes = bytes;
  header->epoch = epoch;
  header->pid = getpid();
  if (getrandom(&header->cookie, sizeof(header->cookie), 0) != sizeof(header->cookie))
    return errno_status("cannot get random bytes", errno);
  header->cookie_address = reinterpret_cast<uintptr_t>(&header->cookie);
  return std::shared_ptr<Arena>(new Arena(std::move(fd), layout, std::move(mapping), *header));
}

Result<std::shared_ptr<Arena>> Arena::attach(UniqueFd fd, const ArenaLayout& layout,
                                             Rank local_rank, uint64_t epoch) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW)) {
    return failed_precondition("a peer's shared memory is not sealed against shrinking");
  }
  RUEDA_ASSIGN_OR_RETURN(auto mapping, SharedMapping::of(fd.get(), layout.total_bytes(), {}));
  ArenaHeader header{};
  std::memcpy(&header, mapping->base(), sizeof(header));  // copied once, then checked
  if (header.magic != ArenaHeader::kMagic || header.version != kVersion ||
      header.layout_hash != layout.hash() || header.total_bytes != layout.total_bytes() ||
      header.local_rank != local_rank || header.epoch != epoch) {
    return failed_precondition(
        "a peer's shared memory has another layout: ranks run different versions or settings");
  }
  return std::shared_ptr<Arena>(new Arena(std::move(fd), layout, std::move(mapping), header));
}

std::byte* Arena::base() const { return mapping_->base(); }
SleepWord* Arena::sleep_word() const {
  return reinterpret_cast<SleepWord*>(base() + kSleepWordOffset);
}
std::atomic<int64_t>* Arena::heard() const {
  return reinterpret_cast<std::atomic<int64_t>*>(base() + layout_.heard_offset());
}
SleepWord* Arena::channel_word() const { return sleep_word() + 1; }
std::byte* Arena::group(size_t number) const {
  return base() + layout_.groups_offset() + (number - 1) * layout_.group_bytes();
}
ChannelControl* Arena::channel(size_t number) const {
  const size_t each = layout_.channels();
  std::byte* const first = number < each ? base() + kChannelsOffset : group(number / each);
  return reinterpret_cast<ChannelControl*>(first) + number % each;
}
std::byte* Arena::buffer(size_t channel, size_t index) const {
  const size_t each = layout_.channels();
  std::byte* const first = channel < each ? base() + layout_.staging_offset()
                                          : group(channel / each) + layout_.control_bytes();
  return first + (channel % each * layout_.buffers + index) * layout_.chunk_bytes;
}

Status Arena::reserve_channels(size_t number) {
  RUEDA_RETURN_IF_ERROR(reserve_controls(number));
  return reserve_buffers(number);
}

Status Arena::reserve_first_channels(size_t number) {
  RUEDA_RETURN_IF_ERROR(reserve(group(number), layout_.control_bytes()));
  return reserve_buffers(number);
}

Status Arena::reserve_controls(size_t number) {
  release_channels(number);
  return reserve(group(number), layout_.control_bytes());
}

Status Arena::reserve_buffers(size_t number) {
  std::byte* const begin = group(number) + layout_.control_bytes();
  RUEDA_RETURN_IF_ERROR(reserve(begin, layout_.group_buffer_bytes()));
  madvise(begin, layout_.group_buffer_bytes(), MADV_POPULATE_WRITE);
  return {};
}

Status Arena::reserve(std::byte* begin, size_t bytes) {
  const int error = posix_fallocate(fd_.get(), begin - base(), static_cast<off_t>(bytes));
  if (error == 0) return {};
  return errno_status(
      "cannot reserve " + std::to_string(bytes) + " bytes of shared memory for a group of ranks",
      error);
}

void Arena::release_channels(size_t number) {
  // What is punched out reads as zero when it comes back.
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
            static_cast<off_t>(group(number) - base()), static_cast<off_t>(layout_.group_bytes()));
}
ByteRing Arena::ring_to(Rank local_rank) const {
  const size_t offset = static_cast<size_t>(local_rank) * ByteRing::bytes_for(layout_.ring_bytes);
  return {base() + layout_.rings_offset() + offset, layout_.ring_bytes};
}

}  // namespace rueda::host
