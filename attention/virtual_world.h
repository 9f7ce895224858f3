// Virtual ranks: several ranks of one process and thread, whose messages are copies. For one GPU:
// what a job of that many GPUs computes, step by step.
#pragma once

#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "attention/backend.h"
#include "collectives/cuda/device.h"

namespace rueda::attention {

// Who carries: a stream of its own beside the one in which is computed, or the host at once.
class Copies {
 public:
  // A point in a stream; null: everything before it is done.
  using Point = std::shared_ptr<const void>;
  virtual ~Copies() = default;
  // A copy behind what the computing stream has been given until now; gives the point behind it.
  virtual Result<Point> copy(const std::byte* from, std::byte* to, int64_t bytes) = 0;
  // What the computing stream is given from here on comes behind the point.
  virtual Status wait(const Point& point) = 0;
};

class HostCopies final : public Copies {
 public:
  Result<Point> copy(const std::byte* from, std::byte* to, int64_t bytes) override;
  Status wait(const Point&) override { return {}; }
};

// On a GPU, in a stream that is borrowed. computing: the caller's.
class StreamCopies final : public Copies {
 public:
  StreamCopies(const cuda::Stream* stream, cuda::StreamHandle computing)
      : device_(stream->device()), stream_(stream->handle()), computing_(computing) {}
  Result<Point> copy(const std::byte* from, std::byte* to, int64_t bytes) override;
  Status wait(const Point& point) override;

 private:
  Result<cuda::EventPtr> mark(cuda::StreamHandle stream) const;

  const cuda::DevicePtr device_;
  const cuda::StreamHandle stream_, computing_;
};

class VirtualWorld {
 public:
  // Borrows it.
  VirtualWorld(Rank ranks, Copies* copies) : copies_(copies), bytes_(static_cast<size_t>(ranks)) {}
  // One rank's side; lives no longer than the world.
  std::unique_ptr<Messages> messages_of(Rank rank, const Program& program);
  // What each rank has sent.
  const std::vector<int64_t>& bytes() const { return bytes_; }
  // The computing stream comes behind all copies, so that memory may be given back.
  Status join();

 private:
  class Side;
  struct End {
    bool copied = false;
    Copies::Point point;  // behind the copy
    std::byte* memory = nullptr;
    int64_t bytes = 0;
  };
  // The n-th message that is sent meets the n-th that is received.
  struct Channel {
    std::vector<std::shared_ptr<End>> sends, receives;
  };
  using Place = std::tuple<Rank, Rank, bool>;  // from, to, answer

  Copies* const copies_;
  std::vector<int64_t> bytes_;
  std::map<Place, Channel> channels_;
  Copies::Point last_;
};

}  // namespace rueda::attention
