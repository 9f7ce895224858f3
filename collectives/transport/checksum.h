// CRC32C (Castagnoli, as in iSCSI, RFC 3720 appendix B.4): finds every burst of up to 32 bits, and
// what a TCP checksum misses.
//
// With SSE4.2 or the ARM CRC instructions some 8 bytes per 3 cycles, else by tables. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/base/types.h"

namespace rueda::transport {

// Of the bytes that had `before` (0: nothing yet) followed by these.
uint32_t crc32c(ByteView bytes, uint32_t before = 0);

// For tests: the protocol without instructions; and which one crc32c takes ("sse4.2", "arm",
// "tables").
uint32_t crc32c_by_tables(ByteView bytes, uint32_t before = 0);
std::string crc32c_protocol();

}  // namespace rueda::transport
