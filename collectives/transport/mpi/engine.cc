#include "collectives/transport/mpi/engine.h"

#include <algorithm>
#include <chrono>

namespace rueda::mpi {
namespace {

// Rounds without news: at first in a row, then with naps that grow to the longest.
constexpr int kEagerRounds = 200;
constexpr std::chrono::microseconds kFirstNap{20}, kLongestNap{500};

// MPI may still read or write the memory of what is under way: it is kept until the process ends.
void abandon(Chunk chunk) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<Chunk>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(chunk));
}

}  // namespace

Result<std::shared_ptr<Engine>> Engine::start(const MpiFunctions* functions, size_t chunk_bytes) {
  std::shared_ptr<Engine> engine(new Engine(functions, chunk_bytes));
  engine->thread_ = std::thread([raw = engine.get()] { raw->run(); });
  std::unique_lock lock(engine->mutex_);
  engine->changed_.wait(lock, [&] { return engine->started_; });
  if (!engine->start_status_.ok()) return engine->start_status_;
  return engine;
}

Engine::~Engine() { finish(); }

std::string Engine::library() const { return functions_->library(functions_->self); }

std::shared_ptr<Stream> Engine::open(int peer, int tag, host::Ringer news) {
  std::shared_ptr<Stream> stream(new Stream(this, peer, tag, chunk_bytes_, news));
  const std::lock_guard lock(mutex_);
  if (over_) stream->failed_ = unavailable("MPI has been finalised");
  streams_.push_back(stream);
  return stream;
}

void Engine::finish() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  kick();
  if (thread_.joinable()) thread_.join();
}

void Engine::kick() {
  const std::lock_guard lock(mutex_);
  kicked_ = true;
  changed_.notify_all();
}

void Engine::run() {
  char error[512] = "";
  const auto on_finalize = [](void* engine) { static_cast<Engine*>(engine)->halt(); };
  const bool failed =
      functions_->start(functions_->self, on_finalize, this, error, sizeof(error)) != 0;
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
    over_ = failed;
    if (failed) {
      start_status_ = failed_precondition(error);
    } else {
      rank_ = functions_->rank(functions_->self);
      size_ = functions_->size(functions_->self);
    }
    changed_.notify_all();
  }
  if (failed) return;
  serve();
  bool halted = false;
  {
    const std::lock_guard lock(mutex_);
    halted = halted_;
    over_ = true;
    changed_.notify_all();
  }
  if (!halted && !unclean_) functions_->finish(functions_->self);
}

// Somebody else finalises MPI: all of ours ends before.
void Engine::halt() {
  if (std::this_thread::get_id() == thread_.get_id()) return;
  std::unique_lock lock(mutex_);
  stopping_ = halted_ = kicked_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return over_; });
}

bool Engine::is_over(const Stream& stream) {
  const bool idle = stream.sending_.empty() && stream.ready_.empty();
  return stream.detached_ && stream.receiving_.empty() && (idle || !stream.failed_.ok());
}

void Engine::serve() {
  int quiet = 0;
  auto nap = kFirstNap;
  Stream::Clock::time_point linger = Stream::Clock::time_point::max();
  std::vector<std::shared_ptr<Stream>> streams;
  while (true) {
    bool stopping = false;
    {
      const std::lock_guard lock(mutex_);
      kicked_ = false;
      streams = streams_;
      stopping = stopping_;
    }
    bool moved = false, busy = false;
    for (const auto& stream : streams) moved |= advance(*stream, &busy);
    streams.clear();
    std::unique_lock lock(mutex_);
    std::erase_if(streams_, [](const auto& stream) {
      const std::lock_guard inner(stream->mutex_);
      return is_over(*stream);
    });
    if (stopping) {
      linger = std::min(linger, Stream::Clock::now() + kLinger);
      if (!busy || Stream::Clock::now() >= linger) break;
    }
    if (moved) {
      quiet = 0;
      nap = kFirstNap;
    } else if (!busy) {
      changed_.wait(lock, [&] { return kicked_ || stopping_; });
      quiet = 0;
      nap = kFirstNap;
    } else if (++quiet < kEagerRounds) {
      lock.unlock();
      std::this_thread::yield();
    } else {
      changed_.wait_for(lock, nap, [&] { return kicked_; });
      nap = std::min(2 * nap, kLongestNap);
    }
  }
  const std::lock_guard lock(mutex_);
  for (const auto& stream : streams_) {
    const std::lock_guard inner(stream->mutex_);
    if (stream->failed_.ok()) stream->failed_ = unavailable("MPI has been finalised");
    if (stream->news_.word != nullptr) stream->news_.ring();
    abandon_all(*stream);
  }
}

void Engine::abandon_all(Stream& stream) {
  for (auto* flights : {&stream.sending_, &stream.receiving_}) {
    while (!flights->empty()) abandon(flights->pop_front().chunk);
  }
}

void Engine::fail(Stream& stream, int error) {
  char text[256] = "";
  functions_->explain(functions_->self, error, text, sizeof(text));
  if (stream.failed_.ok()) stream.failed_ = unavailable(std::string("MPI: ") + text);
  unclean_ = true;
}

bool Engine::advance_sends(Stream& stream, std::unique_lock<std::mutex>& lock) {
  bool moved = false;
  while (!stream.ready_.empty() && stream.failed_.ok()) {
    Stream::Flight flight{stream.ready_.pop_front(), nullptr};
    ++stream.sending_count_;
    lock.unlock();
    const int error =
        functions_->send(functions_->self, stream.peer_, stream.tag_, flight.chunk.bytes.get(),
                         flight.chunk.size, &flight.request);
    lock.lock();
    if (error != 0) {
      fail(stream, error);
      break;
    }
    stream.sending_.push_back(std::move(flight));
    moved = true;
  }
  while (!stream.sending_.empty()) {
    lock.unlock();
    const int done = functions_->test(functions_->self, &stream.sending_.front().request);
    lock.lock();
    if (done < 0) fail(stream, done);
    if (done == 0) break;
    stream.give_back(stream.sending_.pop_front().chunk);
    --stream.sending_count_;
    moved = true;
  }
  return moved;
}

bool Engine::advance_receives(Stream& stream, std::unique_lock<std::mutex>& lock) {
  bool moved = false;
  const auto expects = [&] {
    return !stream.detached_ && stream.failed_.ok() &&
           stream.arrived_.size() + stream.receiving_.size() < Stream::kMostChunks &&
           stream.received_ + stream.receiving_.size() < stream.announced_;
  };
  while (expects()) {
    uint64_t count = 0;
    void* message = nullptr;
    lock.unlock();
    const int found =
        functions_->probe(functions_->self, stream.peer_, stream.tag_, &count, &message);
    lock.lock();
    if (found < 0) fail(stream, found);
    if (found <= 0) break;
    Stream::Flight flight;
    if (count > stream.chunk_bytes_) {  // the peer has larger chunks: allowed, they are only slower
      flight.chunk = {std::make_unique_for_overwrite<std::byte[]>(count), count, 0, 0};
    } else {
      flight.chunk = stream.take_chunk(count);
    }
    flight.chunk.size = count;
    lock.unlock();
    const int error = functions_->receive(functions_->self, &message, flight.chunk.bytes.get(),
                                          count, &flight.request);
    lock.lock();
    if (error != 0) {
      fail(stream, error);
      break;
    }
    stream.receiving_.push_back(std::move(flight));
    moved = true;
  }
  while (!stream.receiving_.empty()) {
    lock.unlock();
    const int done = functions_->test(functions_->self, &stream.receiving_.front().request);
    lock.lock();
    if (done < 0) fail(stream, done);
    if (done <= 0) break;
    stream.arrived_.push_back(stream.receiving_.pop_front().chunk);
    ++stream.received_;
    moved = true;
  }
  return moved;
}

bool Engine::advance(Stream& stream, bool* busy) {
  std::unique_lock lock(stream.mutex_);
  const bool was_well = stream.failed_.ok();
  const bool sent = advance_sends(stream, lock);
  const bool received = advance_receives(stream, lock);
  const bool waits_for_peer = stream.received_ < stream.announced_ && !stream.detached_ &&
                              stream.arrived_.size() < Stream::kMostChunks;
  const bool late = Stream::Clock::now() >= stream.deadline_;
  if (stream.failed_.ok() && late &&
      ((stream.ending_ && stream.received_ < stream.announced_) || stream.detached_)) {
    // Nothing more will come, or nobody takes what we send.
    const bool lost = !stream.sending_.empty() || !stream.receiving_.empty() ||
                      !stream.ready_.empty() || stream.ending_;
    if (lost) {
      stream.failed_ = stream.ending_ ? stream.end_status_ : unavailable("the peer took no more");
      unclean_ = true;
    }
  }
  if (!stream.failed_.ok() && stream.detached_) {
    abandon_all(stream);
  }
  const bool failed_now = was_well && !stream.failed_.ok();
  if ((received || (sent && stream.blocked_) || failed_now || stream.ending_) &&
      stream.news_.word != nullptr) {
    stream.news_.ring();
  }
  if (stream.failed_.ok() && (!stream.sending_.empty() || !stream.receiving_.empty() ||
                              !stream.ready_.empty() || waits_for_peer)) {
    *busy = true;
  }
  return sent || received;
}

}  // namespace rueda::mpi
