// Engine: the one thread of a process that calls MPI, and the streams it serves.
//
// Idea: MPI's progress needs calls, and most MPI libraries want them from one thread. The thread
// sleeps while no stream has anything on its way; while something is, it polls, at first in a row,
// then with short naps.
//
// Threads: open from any; a Stream's connection side from one thread each.
// MPI:     when nobody has initialised it, the engine's thread does, with MPI_THREAD_FUNNELED being
//          enough. When somebody has (mpi4py), MPI_THREAD_SERIALIZED is enough as long as the
//          program's own calls do not overlap with collectives of ours, MPI_THREAD_MULTIPLE always.
//          Who initialised MPI finalises it; before MPI_Finalize begins, all streams are ended.
// End:     finish() or the destructor: what was handed over is sent (kLinger at most), then the
//          plugin's finish on the thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "collectives/base/status.h"
#include "collectives/transport/mpi/functions.h"
#include "collectives/transport/mpi/stream.h"

namespace rueda::mpi {

class Engine {
 public:
  static constexpr std::chrono::seconds kLinger{5};

  // `functions` must outlive the engine. chunk_bytes: size of a message, at most 1 GiB.
  static Result<std::shared_ptr<Engine>> start(const MpiFunctions* functions, size_t chunk_bytes);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::string library() const;

  // news: rung when something has arrived, when there is room again for a blocked connection, and
  // at the end; borrowed until Stream::detach.
  std::shared_ptr<Stream> open(int peer, int tag, host::Ringer news);
  void finish();
  // A peer was lost: MPI_Finalize would wait for it for ever, so it is left out.
  void mark_unclean() { unclean_ = true; }

 private:
  friend class Stream;
  Engine(const MpiFunctions* functions, size_t chunk_bytes)
      : functions_(functions), chunk_bytes_(chunk_bytes) {}

  void kick();
  void run();
  void serve();
  void halt();  // MPI_Finalize is about to begin on the calling thread
  // True if something moved; *busy when there is more to come.
  bool advance(Stream& stream, bool* busy);
  bool advance_sends(Stream& stream, std::unique_lock<std::mutex>& lock);
  bool advance_receives(Stream& stream, std::unique_lock<std::mutex>& lock);
  void fail(Stream& stream, int error);
  static void abandon_all(Stream& stream);
  static bool is_over(const Stream& stream);

  const MpiFunctions* const functions_;
  const size_t chunk_bytes_;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> unclean_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Stream>> streams_;
  bool kicked_ = false, stopping_ = false, started_ = false, halted_ = false, over_ = false;
  Status start_status_;
  std::thread thread_;
};

}  // namespace rueda::mpi
