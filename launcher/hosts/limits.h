// Bounds of what controller and agents send each other.
#pragma once

#include <chrono>
#include <cstddef>

namespace rueda::launcher {

inline constexpr int kMaxControlBytes = 4 << 20;      // one message
inline constexpr size_t kMaxOutputPiece = 64 << 10;   // of a rank's output in one message
inline constexpr size_t kMaxOutputWaiting = 1 << 20;  // then no more is read from ranks, or agents
inline constexpr size_t kMaxEventsWaiting = 4096;     // of one agent, then it is not read from
inline constexpr size_t kMaxStateText = 4096;         // of a rank in a report
inline constexpr size_t kMaxStacksText = 256 << 10;   // likewise
inline constexpr std::chrono::seconds kHandshakeLimit{5};
inline constexpr size_t kMaxStrangers = 128;  // connections accepted within kHandshakeLimit

inline constexpr std::chrono::milliseconds kHeartbeat{250};
inline constexpr std::chrono::milliseconds kSuspectAfter{1000};
inline constexpr double kDefaultSilenceSeconds = 5;  // then the other side is taken for dead

}  // namespace rueda::launcher
