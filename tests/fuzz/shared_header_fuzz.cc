// Memory that a peer of the same host can write: the arena's header when it is attached, and the
// counters of a ring while it is used.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <new>

#include "collectives/host/arena.h"
#include "tests/fuzz/input.h"

namespace rueda::fuzz {
namespace {

using namespace host;

constexpr uint64_t kEpoch = 7;

// The input changes an honest arena's header; it is taken only if nothing that counts has changed.
void attach(Input input) {
  const ArenaLayout layout{.local_size = 2, .chunk_bytes = 4096, .buffers = 2, .ring_bytes = 4096};
  static const ArenaHeader honest = [&] {
    auto arena = Arena::create(layout, 1, kEpoch);
    expect(arena.ok(), "an arena can be made");
    return arena.value()->header();
  }();
  ArenaHeader header = honest;
  auto* const bytes = reinterpret_cast<char*>(&header);
  const auto size_of_file = input.number<uint8_t>();
  const auto seals = input.number<uint8_t>();
  while (!input.empty()) {
    const size_t at = input.number<uint8_t>() % sizeof(header);
    bytes[at] = static_cast<char>(bytes[at] ^ input.number<char>());
  }
  UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return;
  const size_t total = layout.total_bytes() - (size_of_file % 4 == 1 ? 4096 : 0);
  if (ftruncate(fd.get(), static_cast<off_t>(total)) != 0) return;
  expect(pwrite(fd.get(), &header, sizeof(header), 0) == sizeof(header), "the header is written");
  const bool sealed = seals % 4 != 1;
  if (sealed) fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  const auto arena = Arena::attach(std::move(fd), layout, 1, kEpoch);
  const bool honest_enough =
      header.magic == honest.magic && header.version == honest.version &&
      header.local_rank == honest.local_rank && header.layout_hash == honest.layout_hash &&
      header.total_bytes == honest.total_bytes && header.epoch == honest.epoch;
  expect(arena.ok() == (honest_enough && sealed && total == layout.total_bytes()),
         "an arena is taken if and only if it is as expected");
}

struct AlignedDelete {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(128)); }
};

// Both ends of a ring while somebody writes its counters.
void ring(Input input) {
  constexpr size_t kCapacity = 256;
  const size_t bytes = ByteRing::bytes_for(kCapacity);
  const std::unique_ptr<std::byte[], AlignedDelete> memory(new (std::align_val_t(128))
                                                               std::byte[bytes]());
  auto* const header = reinterpret_cast<RingHeader*>(memory.get());
  ByteRing ring(memory.get(), kCapacity);
  while (!input.empty()) {
    const auto what = input.number<uint8_t>();
    bool sane = true;
    switch (what % 6) {
      case 0: header->tail = input.number<uint64_t>(); break;
      case 1: header->head = input.number<uint64_t>(); break;
      case 2: header->tail = header->head + input.number<uint16_t>(); break;
      case 3: {
        const std::string_view data = input.bytes(input.number<uint8_t>() * size_t{2});
        const auto copy = std::make_unique<std::byte[]>(data.size());
        std::memcpy(copy.get(), data.data(), data.size());
        expect(ring.write({copy.get(), data.size()}, &sane) <= data.size(), "writes are bounded");
        break;
      }
      default: {
        const size_t count = input.number<uint8_t>() * size_t{2};
        const auto into = std::make_unique<std::byte[]>(count);
        const size_t got = ring.read({into.get(), count}, &sane);
        expect(got <= count && got <= kCapacity && (sane || got == 0), "reads are bounded");
      }
    }
    (void)ring.readable();
    (void)ring.writable();
  }
}

}  // namespace
}  // namespace rueda::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rueda::fuzz::Input input(data, size);
  if (input.number<uint8_t>() % 4 == 0) {
    rueda::fuzz::attach(input);
  } else {
    rueda::fuzz::ring(input);
  }
  return 0;
}
