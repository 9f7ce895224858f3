// Frames of the store's stream: four bytes of length, little-endian, then that many bytes of one
// StoreRequest (client to server) or StoreReply (server to client). Nothing else is on the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "proto/limits.h"
#include "runtime/rendezvous/little_endian.h"
#include "runtime/rendezvous/store.h"

namespace rueda::rendezvous {

inline constexpr size_t kFrameHeaderBytes = 4;
// Everything a message of the store can hold, and room for tags and numbers.
inline constexpr size_t kMaxFrameBytes = kMaxValueBytes + kMaxKeyBytes + wire::kMaxErrorBytes + 256;
static_assert(kMaxValueBytes == wire::kMaxStoreValueBytes);
static_assert(kMaxKeyBytes == wire::kMaxStoreKeyBytes);
static_assert(kMaxFrameBytes <= wire::kMaxMessageBytes);

inline std::string framed(std::string_view message) {
  std::string frame(kFrameHeaderBytes, '\0');
  store_little(static_cast<uint32_t>(message.size()), reinterpret_cast<uint8_t*>(frame.data()));
  frame += message;
  return frame;
}

// `header`: kFrameHeaderBytes bytes. May be over kMaxFrameBytes: the caller checks.
inline size_t frame_length(const std::string& header) {
  return load_little<uint32_t>(reinterpret_cast<const uint8_t*>(header.data()));
}

}  // namespace rueda::rendezvous
