// The bytes and sizes of a test's messages.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/transport/tag_transport.h"

namespace rueda::transport {

using Bytes = std::vector<std::byte>;

inline constexpr size_t kHeader = sizeof(FrameHeader);
inline constexpr size_t kPiece = TagTransport::kPieceBytes;
// Sent at once everywhere, after a grant in one piece, in three pieces.
inline constexpr size_t kSmall = 300;
inline constexpr size_t kLarge = TagTransport::kFarEagerBytes + 1;
inline constexpr size_t kHuge = 2 * kPiece + kPiece / 2;

inline Bytes pattern(size_t count, unsigned seed = 1) {
  Bytes bytes(count);
  for (size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 256 + seed * 17) & 0xff);
  return bytes;
}

}  // namespace rueda::transport
