// The frame: what travels on every connection. A fixed header, then `bytes` bytes of body.
//
//   kData     body of one message (tag)                 kGrant  the receiver has a buffer of
//   `bytes` for tag: send kControl  body for the control handler              kAbort  body: code
//   and text of the first verdict kGoodbye  the sender leaves in order; nothing follows kRefuse
//   answers a grant whose size or meta differs from the send's (bytes, meta: the send's); no body
//   kBeat  a sign of life, nothing else; no body
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
  uint64_t offset =
      0;  // data: where in the message this body belongs; large messages travel in pieces, so that
  uint64_t total = 0;       // control frames get between them. total: size of the message
  uint32_t body_sum = 0;    // CRC32C of the body; 0 on connections that need none
  uint32_t header_sum = 0;  // of all before it
};
static_assert(sizeof(FrameHeader) == 56);
static_assert(offsetof(FrameHeader, header_sum) == 52);

inline constexpr uint64_t kMaxControlBytes = 16 << 20;
inline constexpr uint64_t kMaxAbortBytes = 64 << 10;

}  // namespace rueda::transport
