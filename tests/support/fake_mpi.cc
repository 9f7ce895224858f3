#include "tests/support/fake_mpi.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

namespace rueda::testing {
namespace {

constexpr uint64_t kEager = 512;

struct Message {
  std::vector<std::byte> copy;
  const void* bytes = nullptr;
  uint64_t count = 0;
  std::atomic<bool> received{false};
};

struct Request {
  std::shared_ptr<Message> message;  // of a send: done when it was received; null: done
};

}  // namespace

struct FakeMpi::Shared {
  struct Rank {
    Shared* world = nullptr;
    int rank = 0;
    mpi::MpiFunctions functions{};
    std::atomic<bool> broken{false};
    void (*on_finalize)(void*) = nullptr;
    void* argument = nullptr;
  };
  std::mutex mutex;
  // From, to, tag.
  std::map<std::tuple<int, int, int>, std::deque<std::shared_ptr<Message>>> queues;
  std::deque<Rank> ranks;
  std::map<void*, std::unique_ptr<Request>> requests;

  void* add(std::unique_ptr<Request> request) {
    void* const key = request.get();
    requests.emplace(key, std::move(request));
    return key;
  }
  std::atomic<int> finished{0};
};

namespace {

using Rank = FakeMpi::Shared::Rank;
Rank& of(void* self) { return *static_cast<Rank*>(self); }

const char* library(void*) { return "an MPI of the tests"; }

int start(void* self, void (*on_finalize)(void*), void* argument, char*, size_t) {
  of(self).on_finalize = on_finalize;
  of(self).argument = argument;
  return 0;
}

int rank_of(void* self) { return of(self).rank; }
int size_of(void* self) { return static_cast<int>(of(self).world->ranks.size()); }

int send(void* self, int peer, int tag, const void* bytes, uint64_t count, void** request) {
  Rank& me = of(self);
  if (me.broken) return 77;
  auto message = std::make_shared<Message>();
  message->count = count;
  message->bytes = bytes;
  auto made = std::make_unique<Request>();
  if (count <= kEager) {
    const auto* begin = static_cast<const std::byte*>(bytes);
    message->copy.assign(begin, begin + count);
    message->bytes = message->copy.data();
  } else {
    made->message = message;
  }
  const std::lock_guard lock(me.world->mutex);
  me.world->queues[{me.rank, peer, tag}].push_back(std::move(message));
  *request = me.world->add(std::move(made));
  return 0;
}

int probe(void* self, int peer, int tag, uint64_t* count, void** message) {
  Rank& me = of(self);
  if (me.broken) return -77;
  const std::lock_guard lock(me.world->mutex);
  auto& queue = me.world->queues[{peer, me.rank, tag}];
  if (queue.empty()) return 0;
  *count = queue.front()->count;
  *message = new std::shared_ptr<Message>(queue.front());
  queue.pop_front();
  return 1;
}

int receive(void* self, void** message, void* into, uint64_t count, void** request) {
  auto* found = static_cast<std::shared_ptr<Message>*>(*message);
  std::memcpy(into, (*found)->bytes, count);
  (*found)->received = true;
  delete found;
  const std::lock_guard lock(of(self).world->mutex);
  *request = of(self).world->add(std::make_unique<Request>());
  return 0;
}

int test(void* self, void** request) {
  const std::lock_guard lock(of(self).world->mutex);
  const auto made = of(self).world->requests.find(*request);
  if (made->second->message != nullptr && !made->second->message->received) return 0;
  of(self).world->requests.erase(made);
  *request = nullptr;
  return 1;
}

void explain(void*, int error, char* text, size_t room) {
  std::snprintf(text, room, "the test broke it (%d)", error);
}

void finish(void* self) { ++of(self).world->finished; }

}  // namespace

FakeMpi::FakeMpi(int size) : shared_(std::make_shared<Shared>()) {
  for (int rank = 0; rank < size; ++rank) {
    Rank& made = shared_->ranks.emplace_back();
    made.world = shared_.get();
    made.rank = rank;
    made.functions = {mpi::kMpiFunctionsVersion,
                      &made,
                      library,
                      start,
                      rank_of,
                      size_of,
                      send,
                      probe,
                      receive,
                      test,
                      explain,
                      finish};
  }
}

FakeMpi::~FakeMpi() = default;

std::shared_ptr<mpi::Engine> FakeMpi::engine(int rank, size_t chunk_bytes) {
  auto started =
      mpi::Engine::start(&shared_->ranks[static_cast<size_t>(rank)].functions, chunk_bytes);
  if (!started.ok()) return nullptr;
  auto engine = started.value();
  // The world's memory must outlive the engine's thread.
  return {engine.get(), [engine, world = shared_](mpi::Engine*) mutable { engine.reset(); }};
}

void FakeMpi::break_rank(int rank) { shared_->ranks[static_cast<size_t>(rank)].broken = true; }

void FakeMpi::finalize(int rank) {
  Rank& one = shared_->ranks[static_cast<size_t>(rank)];
  one.on_finalize(one.argument);
}

int FakeMpi::finished() const { return shared_->finished; }

}  // namespace rueda::testing
