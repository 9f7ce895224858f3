// The frame: what travels on every connection. A fixed header, then `bytes` bytes of body.
//
//   kData     body: a message of this tag, or a piece of it     bytes, offset, total, meta
//   kGrant    the receiver has a buffer for tag: send            bytes, meta: the buffer's; no body
//   kRefuse   answers a grant that differs from the send         bytes, meta: the send's; no body
//   kControl  body: for the control handler                      bytes
//   kAbort    body: code and text of the first verdict           bytes, tag: the rank that it is
//                                                                about, plus 1; 0: no single one
//   kGoodbye  the sender leaves in order; nothing follows        no body
//   kBeat     a sign of life, nothing else                       no body
//
//   | magic 4 | type 1 | 0 1 | meta 2 | epoch 8 | tag 8 | bytes 8 | offset 8 | total 8 |
//   | body_sum 4 | header_sum 4 | body: bytes ...
//
// On connections between hosts header and body carry a CRC32C each: what differs ends the peer by
// name. The header's begins with the number of the frame on its connection, so that a frame that is
// lost or comes twice differs too.
//
// Both ends have the same byte order and version: the handshake (rendezvous) and the layout hash
// see to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/transport/checksum.h"

namespace rueda::transport {

enum class FrameType : uint8_t {
  kData = 1,
  kGrant = 2,
  kControl = 3,
  kAbort = 4,
  kGoodbye = 5,
  kRefuse = 6,
  kBeat = 7
};

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x61445552;  // "RUDa"
  uint32_t magic = kMagic;
  FrameType type = FrameType::kData;
  uint8_t reserved = 0;
  uint16_t meta = 0;   // data, grant: the caller's; must be equal on both sides (a dtype, say)
  uint64_t epoch = 0;  // frames of another epoch are read and dropped
  uint64_t tag = 0;
  uint64_t bytes = 0;  // body; kGrant: size of the receiver's buffer, no body
  // Data: where in the message this body belongs, and the size of the message. Large messages
  // travel in pieces, so that control frames get between them.
  uint64_t offset = 0;
  uint64_t total = 0;
  uint32_t body_sum = 0;    // CRC32C of the body; 0 on connections that need none
  uint32_t header_sum = 0;  // of all before it
};
static_assert(sizeof(FrameHeader) == 56);
static_assert(offsetof(FrameHeader, header_sum) == 52);

inline constexpr bool has_body(FrameType type) {
  return type == FrameType::kData || type == FrameType::kControl || type == FrameType::kAbort;
}

// number: of the frame on its connection.
inline uint32_t header_sum_of(const FrameHeader& header, uint32_t number) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(FrameHeader, header_sum)),
                number);
}

inline constexpr uint64_t kMaxControlBytes = 16 << 20;
inline constexpr uint64_t kMaxAbortBytes = 64 << 10;

}  // namespace rueda::transport
