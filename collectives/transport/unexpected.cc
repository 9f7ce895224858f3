#include "collectives/transport/unexpected.h"

#include <new>

#include "collectives/base/check.h"

namespace rueda::transport {
namespace {

void release(Unexpected* message) {
  message->~Unexpected();
  ::operator delete(message);
}

}  // namespace

UnexpectedPool::~UnexpectedPool() {
  for (auto& list : free_) {
    while (!list.empty()) release(list.pop_front());
  }
}

size_t UnexpectedPool::class_of(size_t bytes) {
  RUEDA_CHECK(bytes <= kMostBytes, "larger messages wait for their receiver");
  size_t size_class = 0;
  while (capacity(size_class) < bytes) ++size_class;
  return size_class;
}

Unexpected* UnexpectedPool::make(size_t size_class) {
  auto* const message =
      new (::operator new(sizeof(Unexpected) + capacity(size_class))) Unexpected();
  message->size_class = static_cast<uint16_t>(size_class);
  ++all_[size_class];
  return message;
}

Unexpected* UnexpectedPool::take(size_t bytes, uint16_t meta) {
  size_t size_class = class_of(bytes);
  while (size_class < kClasses && free_[size_class].empty()) ++size_class;
  Unexpected* message = nullptr;
  if (size_class == kClasses) {
    message = make(class_of(bytes));
  } else {
    message = free_[size_class].pop_front();
    kept_ -= capacity(size_class);
  }
  message->bytes = bytes;
  message->meta = meta;
  return message;
}

void UnexpectedPool::reserve(size_t bytes, size_t count) {
  const size_t size_class = class_of(bytes);
  while (all_[size_class] < count && kept_ + capacity(size_class) <= most_kept_)
    give_back(make(size_class));
}

void UnexpectedPool::give_back(Unexpected* message) {
  const size_t bytes = capacity(message->size_class);
  if (kept_ + bytes > most_kept_) {
    --all_[message->size_class];
    return release(message);
  }
  kept_ += bytes;
  free_[message->size_class].push_front(message);
}

}  // namespace rueda::transport
