#include "collectives/transport/checksum.h"

#include <catch2/catch.hpp>

#include <cstring>
#include <random>
#include <vector>

namespace rueda::transport {
namespace {

ByteView view(const std::vector<std::byte>& bytes) { return bytes; }

TEST_CASE("crc32c gives the sums of RFC 3720, by both protocols", "[checksum]") {
  const auto sums = [](const std::vector<std::byte>& bytes, uint32_t wanted) {
    CHECK(crc32c(view(bytes)) == wanted);
    CHECK(crc32c_by_tables(view(bytes)) == wanted);
  };
  sums({}, 0);
  sums(std::vector<std::byte>(32, std::byte{0}), 0x8a9136aa);
  sums(std::vector<std::byte>(32, std::byte{0xff}), 0x62a8ab43);
  std::vector<std::byte> ascending;
  for (int i = 0; i < 32; ++i) ascending.push_back(static_cast<std::byte>(i));
  sums(ascending, 0x46dd794e);
  std::vector<std::byte> digits(9);
  std::memcpy(digits.data(), "123456789", 9);
  sums(digits, 0xe3069283);
}

TEST_CASE("crc32c of pieces is that of the whole, and every flipped bit changes it", "[checksum]") {
  std::mt19937 random(3);
  std::vector<std::byte> bytes(1000);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  const uint32_t whole = crc32c(view(bytes));
  CHECK(whole == crc32c_by_tables(view(bytes)));
  for (size_t cut = 0; cut <= bytes.size(); cut += 7) {
    const uint32_t first = crc32c(view(bytes).first(cut));
    REQUIRE(crc32c(view(bytes).subspan(cut), first) == whole);
    REQUIRE(crc32c_by_tables(view(bytes).subspan(cut), first) == whole);
  }
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    REQUIRE(crc32c(view(bytes)) != whole);
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace rueda::transport
