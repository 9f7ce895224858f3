#include "collectives/transport/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace rueda::transport {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr size_t kTables = 8;

using Tables = std::array<std::array<uint32_t, 256>, kTables>;

// tables[k][b]: what byte b does to the sum when k more bytes follow ("slicing by 8").
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = sum;
  }
  for (size_t k = 1; k < kTables; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t last = tables[k - 1][byte];
      tables[k][byte] = (last >> 8) ^ tables[0][last & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTable = make_tables();

uint64_t load(const std::byte* from) {
  uint64_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

uint32_t by_tables(const std::byte* at, size_t bytes, uint32_t sum) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const uint64_t word = load(at) ^ sum;
    sum = 0;
    for (size_t i = 0; i < kTables; ++i) sum ^= kTable[kTables - 1 - i][(word >> (8 * i)) & 0xff];
  }
  for (; bytes > 0; ++at, --bytes)
    sum = (sum >> 8) ^ kTable[0][(sum ^ static_cast<uint32_t>(*at)) & 0xff];
  return sum;
}

#if defined(__x86_64__)

constexpr const char* kFast = "sse4.2";
bool has_instructions() { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target("sse4.2"))) uint32_t by_instructions(const std::byte* at, size_t bytes,
                                                           uint32_t sum) {
  uint64_t wide = sum;
  for (; bytes >= 8; at += 8, bytes -= 8) wide = _mm_crc32_u64(wide, load(at));
  sum = static_cast<uint32_t>(wide);
  for (; bytes > 0; ++at, --bytes) sum = _mm_crc32_u8(sum, static_cast<uint8_t>(*at));
  return sum;
}

#elif defined(__aarch64__)

constexpr const char* kFast = "arm";
bool has_instructions() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

__attribute__((target("+crc"))) uint32_t by_instructions(const std::byte* at, size_t bytes,
                                                         uint32_t sum) {
  for (; bytes >= 8; at += 8, bytes -= 8) sum = __crc32cd(sum, load(at));
  for (; bytes > 0; ++at, --bytes) sum = __crc32cb(sum, static_cast<uint8_t>(*at));
  return sum;
}

#else

constexpr const char* kFast = "tables";
bool has_instructions() { return false; }
uint32_t by_instructions(const std::byte* at, size_t bytes, uint32_t sum) {
  return by_tables(at, bytes, sum);
}

#endif

const bool kHasInstructions = has_instructions();

}  // namespace

uint32_t crc32c(ByteView bytes, uint32_t before) {
  if (kHasInstructions) return ~by_instructions(bytes.data(), bytes.size(), ~before);
  return crc32c_by_tables(bytes, before);
}

uint32_t crc32c_by_tables(ByteView bytes, uint32_t before) {
  return ~by_tables(bytes.data(), bytes.size(), ~before);
}

std::string crc32c_protocol() { return kHasInstructions ? kFast : "tables"; }

}  // namespace rueda::transport
