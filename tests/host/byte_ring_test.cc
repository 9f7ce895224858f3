#include "collectives/host/byte_ring.h"
#include "collectives/transport/ring_connection.h"

#include <catch2/catch.hpp>

#include <cstdlib>
#include <thread>
#include <vector>

namespace rueda::host {
namespace {

constexpr size_t kCapacity = 64;

struct alignas(128) Memory {
  std::byte bytes[host::ByteRing::bytes_for(kCapacity)] = {};
  RingHeader* header() { return reinterpret_cast<RingHeader*>(bytes); }
};

std::byte value_at(uint64_t i) { return static_cast<std::byte>((i * 167 + i / 251) & 0xff); }

TEST_CASE("a ring keeps the stream in order around every wrap, for every length", "[ring]") {
  Memory memory;
  host::ByteRing ring(memory.bytes, kCapacity);
  bool sane = true;
  uint64_t written = 0;
  uint64_t read = 0;
  bool same = true;
  for (size_t round = 0; round < 2000; ++round) {
    std::vector<std::byte> out(round % 71);
    for (size_t i = 0; i < out.size(); ++i) out[i] = value_at(written + i);
    written += ring.write(out, &sane);
    std::vector<std::byte> in(round % 67);
    const size_t got = ring.read(in, &sane);
    for (size_t i = 0; i < got; ++i) same &= in[i] == value_at(read + i);
    read += got;
  }
  CHECK(sane);
  CHECK(same);
  CHECK(written - read <= kCapacity);
  CHECK(read > 20 * kCapacity);
}

TEST_CASE("a full ring takes nothing, an empty one gives nothing", "[ring]") {
  Memory memory;
  host::ByteRing ring(memory.bytes, kCapacity);
  bool sane = true;
  std::vector<std::byte> bytes(kCapacity + 1);
  CHECK_FALSE(ring.readable());
  CHECK(ring.writable());
  CHECK(ring.read(bytes, &sane) == 0);
  CHECK(ring.write(bytes, &sane) == kCapacity);
  CHECK_FALSE(ring.writable());
  CHECK(ring.readable());
  CHECK(ring.write(bytes, &sane) == 0);
  CHECK(ring.read(bytes, &sane) == kCapacity);
  CHECK(sane);
}

TEST_CASE("a ring whose counters are impossible is refused by both sides", "[ring]") {
  std::vector<std::byte> bytes(10);
  for (const uint64_t tail : {uint64_t{kCapacity + 1}, ~uint64_t{0}}) {
    Memory memory;
    host::ByteRing ring(memory.bytes, kCapacity);
    memory.header()->tail = tail;
    bool sane = true;
    CHECK(ring.read(bytes, &sane) == 0);
    CHECK_FALSE(sane);
    sane = true;
    CHECK(ring.write(bytes, &sane) == 0);
    CHECK_FALSE(sane);
  }
}

TEST_CASE("two threads stream through a ring without losing a byte", "[ring]") {
  const uint64_t total = std::getenv("RUEDA_TEST_SHORT") != nullptr ? 1 << 20 : 16 << 20;
  struct alignas(128) Large {
    std::byte bytes[host::ByteRing::bytes_for(4096)] = {};
  };
  auto memory = std::make_unique<Large>();
  bool writer_sane = true;
  std::thread writer([&] {
    host::ByteRing ring(memory->bytes, 4096);
    std::vector<std::byte> out(1013);
    for (uint64_t at = 0; at < total && writer_sane;) {
      const size_t count = std::min<uint64_t>(1 + at % out.size(), total - at);
      for (size_t i = 0; i < count; ++i) out[i] = value_at(at + i);
      const size_t taken = ring.write(ByteView(out).first(count), &writer_sane);
      if (taken == 0) std::this_thread::yield();
      at += taken;
    }
  });
  host::ByteRing ring(memory->bytes, 4096);
  std::vector<std::byte> in(777);
  bool sane = true;
  bool same = true;
  for (uint64_t at = 0; at < total && sane;) {
    const size_t got = ring.read(ByteSpan(in).first(1 + at % in.size()), &sane);
    if (got == 0) std::this_thread::yield();
    for (size_t i = 0; i < got; ++i) same &= in[i] == value_at(at + i);
    at += got;
  }
  writer.join();
  CHECK(sane);
  CHECK(writer_sane);
  CHECK(same);
}

// A connection of two rings and what wakes each side, as a rank has them.
struct Side {
  host::SleepWord word;
  host::Doorbell bell = must_have(host::Doorbell::create(&word));
  host::EventLoop loop = must_have(host::EventLoop::create());
  template <typename T>
  static T must_have(Result<T> result) {
    REQUIRE(result.ok());
    return std::move(result).value();
  }
  // Whether anybody rang since the last time; sleeps again.
  bool rung() {
    const bool rang = word.asleep.load() == 0;
    bell.disarm();
    bell.arm();
    return rang;
  }
};

TEST_CASE("a reader wakes only a writer that waits for room", "[ring]") {
  Memory there, back;
  Side writer, reader;
  const auto connection = [](Memory& out, Memory& in, Side& self, Side& peer) {
    return transport::RingConnection::create("inproc", host::ByteRing(out.bytes, kCapacity),
                                             host::ByteRing(in.bytes, kCapacity),
                                             peer.bell.ringer(), UniqueFd(), &self.loop, nullptr)
        .value();
  };
  const auto sends = connection(there, back, writer, reader),
             reads = connection(back, there, reader, writer);
  std::vector<std::byte> bytes(2 * kCapacity), got(2 * kCapacity);
  writer.bell.arm();
  reader.bell.arm();
  const auto write = [&](size_t count) {
    const ByteView piece = ByteView(bytes).first(count);
    const size_t taken = sends->write({&piece, 1}).value();
    sends->flush();
    return taken;
  };
  const auto read = [&] {
    const size_t count = reads->read(got).value();
    reads->flush();
    return count;
  };
  CHECK(write(10) == 10);
  CHECK(reader.rung());
  CHECK(read() == 10);
  CHECK_FALSE(writer.rung());  // it has written all it had
  CHECK(write(2 * kCapacity) == kCapacity);
  CHECK(write(kCapacity) == 0);
  CHECK(reader.rung());
  CHECK(read() == kCapacity);
  CHECK(writer.rung());
  CHECK(write(kCapacity) == kCapacity);
  CHECK(reader.rung());
  CHECK(read() == kCapacity);
  CHECK_FALSE(writer.rung());  // what it wished for has come
  CHECK(read() == 0);
  CHECK_FALSE(writer.rung());
}

}  // namespace
}  // namespace rueda::host
