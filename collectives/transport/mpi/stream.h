// Stream: bytes in order between this process and one peer over MPI, in chunks. Between the thread
// of a connection, which fills and empties chunks, and the engine's thread, which sends and
// receives them.
//
// MPI cannot wake anybody, so nobody polls it for what may come: a connection tells its peer over a
// socket that it has sent a chunk ("announced"), and the engine looks only for what was announced.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/base/types.h"
#include "collectives/host/doorbell.h"
#include "collectives/transport/mpi/few.h"

namespace rueda::mpi {

struct Chunk {
  std::unique_ptr<std::byte[]> bytes;
  size_t capacity = 0;
  size_t size = 0;
  size_t read = 0;  // of a received one
};

class Engine;

class Stream {
 public:
  using Clock = std::chrono::steady_clock;

  // ---- the connection's side ----
  // Takes a prefix of the pieces; 0 when as many chunks are under way as there may be.
  Result<size_t> write(std::span<const ByteView> pieces);
  // Hands over what was written. How many chunks the peer must be told of since the last call.
  size_t flush();
  // Fills a prefix of `into`; 0 when nothing is there. The error of the stream when it has one.
  Result<size_t> read(ByteSpan into);
  // The peer has said that it sent so many more.
  void announce(size_t chunks);
  // The peer will announce nothing more: what was announced is waited for until `deadline`, then
  // reading ends with `status`.
  void end(const Status& status, Clock::time_point deadline);
  void set_blocked(bool blocked);
  // The connection goes; what was handed over is still sent. Nobody is rung after it.
  void detach();

 private:
  friend class Engine;
  static constexpr size_t kMostChunks = 8;  // on their way, in each direction
  static constexpr size_t kMostSpare = 2 * kMostChunks;

  Stream(Engine* engine, int peer, int tag, size_t chunk_bytes, host::Ringer news)
      : engine_(engine), peer_(peer), tag_(tag), chunk_bytes_(chunk_bytes), news_(news) {
    spare_.reserve(kMostSpare);
    small_spare_.reserve(kMostSpare);
  }

  Chunk take_chunk(size_t wanted);
  void give_back(Chunk chunk);

  Engine* const engine_;
  const int peer_, tag_;
  const size_t chunk_bytes_;

  std::mutex mutex_;  // everything down to the next comment
  host::Ringer news_;
  Few<Chunk, kMostChunks> ready_;  // to be sent
  Chunk open_;                     // being filled
  size_t handed_over_ = 0;         // since the last flush
  size_t sending_count_ = 0;
  Few<Chunk, kMostChunks> arrived_;
  uint64_t announced_ = 0, received_ = 0;  // chunks
  bool blocked_ = false, detached_ = false;
  bool ending_ = false;
  Status end_status_;
  Clock::time_point deadline_;              // while ending, or detached
  Status failed_;                           // ends both directions
  std::vector<Chunk> spare_, small_spare_;  // used before, to be used again

  // The engine's thread alone:
  struct Flight {
    Chunk chunk;
    void* request = nullptr;
  };
  Few<Flight, kMostChunks> sending_, receiving_;
};

}  // namespace rueda::mpi
