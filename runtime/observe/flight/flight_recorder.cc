#include "runtime/observe/flight/flight_recorder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "collectives/host/fence.h"
#include "collectives/host/monotonic.h"
#include "runtime/observe/flight/flight_reader.h"

namespace rueda::flight {
namespace {

int64_t realtime_ns() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

uint32_t this_thread() {
  static thread_local const auto id = static_cast<uint32_t>(syscall(SYS_gettid));
  return id;
}

void* map(int fd) {
  struct stat info = {};
  if (fd < 0 || fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(kTotalBytes))
    return nullptr;
  void* at = mmap(nullptr, kTotalBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, kTotalBytes, MADV_DONTFORK);
  return at;
}

// The word of `state` and `path`, with what lies beside them.
constexpr size_t kStateWord = offsetof(Record, generation);
static_assert(kStateWord % kWord == 0 && offsetof(Record, path) == kStateWord + 4 &&
              offsetof(Record, state) == kStateWord + 5);

uint64_t* state_word(Record* record) {
  return reinterpret_cast<uint64_t*>(reinterpret_cast<std::byte*>(record) + kStateWord);
}

uint32_t hash_of(std::string_view text) {  // FNV-1a, folded
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return static_cast<uint32_t>(hash >> 32 ^ hash);
}

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

void copy_text(char* to, size_t room, const std::string& text) {
  std::memcpy(to, text.data(), std::min(room - 1, text.size()));
}

}  // namespace

std::string short_name(std::string_view name) {
  char mark[16];
  const int marked = std::snprintf(mark, sizeof(mark), " #%08x", hash_of(name));
  const size_t room = kNameBytes - static_cast<size_t>(marked) - 3;
  size_t head = room / 2, tail = name.size() - (room - head);
  while (head > 0 && !begins_character(name[head])) --head;
  while (tail < name.size() && !begins_character(name[tail])) ++tail;
  return std::string(name.substr(0, head)) + "..." + std::string(name.substr(tail)) + mark;
}

std::unique_ptr<FlightRecorder> FlightRecorder::open(int fd, const Identity& identity) {
  bool shared = true;
  void* at = map(fd);
  if (at != nullptr) {
    // One process at a time: a program that a rank has started may have the same environment. One
    // that has left in order and ended has a successor: `sh -c 'python one.py && python two.py'`.
    auto* const header = static_cast<Header*>(at);
    std::atomic_ref<int32_t> owner(header->pid);
    int32_t none = owner.load();
    const int32_t was = none;
    const bool is_free = none == 0 || none == getpid() ||
                         (std::atomic_ref<int32_t>(header->left).load() != 0 &&
                          kill(none, 0) != 0 && errno == ESRCH);
    if (!is_free || !owner.compare_exchange_strong(none, getpid())) {
      munmap(at, kTotalBytes);
      at = nullptr;
    } else if (was != getpid()) {
      std::memset(static_cast<std::byte*>(at) + kStatsOffset, 0, kTotalBytes - kStatsOffset);
    }
  }
  if (at == nullptr) {
    shared = false;
    at = mmap(nullptr, kTotalBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
  }
  std::unique_ptr<FlightRecorder> recorder(
      new FlightRecorder(static_cast<std::byte*>(at), shared, identity));
  recorder->begin(identity);
  return recorder;
}

void FlightRecorder::begin(const Identity& identity) {
  Header begun = {};
  begun.version = kVersion;
  begun.header_bytes = sizeof(Header);
  begun.total_bytes = kTotalBytes;
  begun.layout = layout_hash();
  begun.rank = identity.rank;
  begun.size = identity.size;
  begun.pid = getpid();
  begun.stack_fd = -1;
  begun.epoch = identity.epoch;
  begun.monotonic_ns = host::monotonic_ns();
  begun.realtime_ns = realtime_ns();
  copy_text(begun.host, sizeof(begun.host), identity.host);
  copy_text(begun.job, sizeof(begun.job), identity.job);
  uint64_t words[sizeof(Header) / kWord];
  std::memcpy(words, &begun, sizeof(begun));
  put(&header().magic, 0, std::memory_order_release);
  std::memset(base_ + kMailOffset, 0, kStatsOffset - kMailOffset);  // of an earlier init
  for (size_t i = 1; i < std::size(words); ++i)
    put(reinterpret_cast<uint64_t*>(base_) + i, words[i]);
  put(&header().magic, kMagic, std::memory_order_release);
}

void FlightRecorder::unmap(void* at) { munmap(at, kTotalBytes); }

uint32_t FlightRecorder::site(const std::string& text) {
  const std::lock_guard<std::mutex> lock(sites_mutex_);
  const auto known = sites_.find(text);
  if (known != sites_.end()) return known->second;
  if (sites_.size() >= kSites) return 0;
  const auto number = static_cast<uint32_t>(sites_.size() + 1);
  sites_.emplace(text, number);
  Site site = {};
  site.length = static_cast<uint32_t>(std::min(text.size(), kSiteBytes));
  // The end says more than the beginning; not from the middle of a character.
  const char* from = text.data() + text.size() - site.length;
  while (site.length > 0 && site.length < text.size() &&
         (static_cast<unsigned char>(*from) & 0xc0) == 0x80) {
    ++from;
    --site.length;
  }
  std::memcpy(site.text, from, site.length);
  uint64_t words[sizeof(Site) / kWord];
  std::memcpy(words, &site, sizeof(site));
  auto* at = reinterpret_cast<uint64_t*>(base_ + kSitesOffset) + (number - 1) * std::size(words);
  for (size_t i = 0; i < std::size(words); ++i) put(at + i, words[i]);
  put(&header().sites, number, std::memory_order_release);
  return number;
}

std::string FlightRecorder::site_text(uint32_t number) const {
  const std::lock_guard<std::mutex> lock(sites_mutex_);
  if (number == 0 || number > sites_.size()) return "";
  const auto* site = reinterpret_cast<const Site*>(base_ + kSitesOffset) + (number - 1);
  return {site->text, site->length};
}

void FlightRecorder::fill(Record* record, const wire::Request& request) {
  record->bytes = has_tensor(request.kind)
                      ? element_count(request.shape) * static_cast<int64_t>(size_of(request.dtype))
                      : 0;
  record->thread = this_thread();
  record->kind = static_cast<uint8_t>(request.kind);
  record->dtype = static_cast<uint8_t>(request.dtype);
  record->reduce_op = static_cast<uint8_t>(request.reduce_op);
  record->ndim = static_cast<uint8_t>(std::min<size_t>(request.shape.size(), 255));
  for (size_t i = 0; i < std::min(request.shape.size(), kMaxDims); ++i)
    record->shape[i] = request.shape[i];
  const bool fits = request.name.size() <= kNameBytes;
  const std::string name = fits ? std::string() : short_name(request.name);
  const std::string_view kept = fits ? std::string_view(request.name) : name;
  std::memcpy(record->name, kept.data(), kept.size());
}

void FlightRecorder::write(Record* to, const Record& from, uint64_t number) {
  uint64_t words[sizeof(Record) / kWord];
  std::memcpy(words, &from, sizeof(Record));
  auto* at = reinterpret_cast<uint64_t*>(to);
  put(at, 0);
  host::seqlock_fence(std::memory_order_release);
  for (size_t i = 1; i < std::size(words); ++i) put(at + i, words[i]);
  put(at, number + 1, std::memory_order_release);
}

FlightRecorder::RecordNumber FlightRecorder::submitted(const wire::Request& request,
                                                       uint32_t process_set, uint32_t site,
                                                       Path path, Rank peer) {
  Record record = {};
  fill(&record, request);
  record.submitted_ns = host::monotonic_ns();
  record.process_set = process_set;
  record.site = site;
  record.epoch = static_cast<uint32_t>(header().epoch);
  record.path = static_cast<uint8_t>(path);
  if (is_point_to_point(request.kind)) record.peer = peer + 1;
  record.state = static_cast<uint8_t>(State::kSubmitted);
  const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  write(&records()[number % kRecords], record, number);
  // Another thread may be a number ahead: the counter never goes back.
  std::atomic_ref<uint64_t> counter(header().submitted);
  uint64_t seen = counter.load(std::memory_order_relaxed);
  while (seen < number + 1 &&
         !counter.compare_exchange_weak(seen, number + 1, std::memory_order_release)) {
  }
  return number + 1;
}

// Null: it has been overwritten.
Record* FlightRecorder::of(RecordNumber number) const {
  if (number == 0) return nullptr;
  Record* const record = &records()[(number - 1) % kRecords];
  return std::atomic_ref<uint64_t>(record->stamp).load(std::memory_order_relaxed) == number
             ? record
             : nullptr;
}

void FlightRecorder::set_state(Record* record, State state, std::optional<Path> path) {
  uint64_t* const word = state_word(record);
  uint64_t value = std::atomic_ref<uint64_t>(*word).load(std::memory_order_relaxed);
  auto* const bytes = reinterpret_cast<uint8_t*>(&value);
  if (path) bytes[4] = static_cast<uint8_t>(*path);
  bytes[5] = static_cast<uint8_t>(state);
  put(word, value);
}

State FlightRecorder::state_of(Record* record) {
  const uint64_t value =
      std::atomic_ref<uint64_t>(*state_word(record)).load(std::memory_order_relaxed);
  return static_cast<State>(reinterpret_cast<const uint8_t*>(&value)[5]);
}

void FlightRecorder::abandoned(RecordNumber number) {
  Record* const r = of(number);
  if (r == nullptr) return;
  static_assert(offsetof(Record, kind) % kWord == 0);
  constexpr size_t kPeer = offsetof(Record, peer) - offsetof(Record, kind);
  auto* const word = reinterpret_cast<uint64_t*>(&r->kind);
  uint64_t value = std::atomic_ref<uint64_t>(*word).load(std::memory_order_relaxed);
  std::memset(reinterpret_cast<std::byte*>(&value) + kPeer, 0, sizeof(r->peer));
  put(word, value);
}

void FlightRecorder::cached(RecordNumber number) {
  if (Record* const r = of(number)) set_state(r, State::kSubmitted, Path::kCached);
}

void FlightRecorder::planned(RecordNumber number) {
  if (Record* const r = of(number)) set_state(r, State::kStarted, Path::kPlanned);
}

void FlightRecorder::agreed(RecordNumber number, int64_t now) {
  Record* const r = of(number);
  if (r == nullptr) return;
  put(reinterpret_cast<uint64_t*>(&r->agreed_ns), static_cast<uint64_t>(now));
  set_state(r, State::kAgreed);
}

void FlightRecorder::started(RecordNumber number, uint64_t batch, int64_t now) {
  Record* const r = of(number);
  if (r == nullptr) return;
  put(&r->batch, batch);
  put(reinterpret_cast<uint64_t*>(&r->started_ns), static_cast<uint64_t>(now));
  set_state(r, State::kStarted);
}

void FlightRecorder::ended(RecordNumber number, int64_t now, bool well) {
  if (number == 0) return;
  if (Record* const r = of(number)) {
    if (state_of(r) >= State::kDone) return;
    put(reinterpret_cast<uint64_t*>(&r->ended_ns), static_cast<uint64_t>(now));
    set_state(r, well ? State::kDone : State::kFailed);
  }
  put(&header().ended, ended_.fetch_add(1, std::memory_order_relaxed) + 1);
}

void FlightRecorder::members(uint32_t process_set, const std::vector<Rank>& ranks) {
  wire::Request request;
  request.kind = CollectiveKind::kProcessSet;
  for (const Rank rank : ranks) {
    if (!request.name.empty()) request.name += ',';
    request.name += std::to_string(rank);
  }
  ended(submitted(request, process_set, 0, Path::kDirect), host::monotonic_ns(), true);
}

uint64_t FlightRecorder::plan(const std::vector<const wire::Request*>& requests,
                              uint32_t process_set, uint32_t generation) {
  auto* const templates = reinterpret_cast<Record*>(base_ + kTemplatesOffset);
  const uint64_t first = templates_;
  for (const wire::Request* request : requests) {
    Record record = {};
    fill(&record, *request);
    record.process_set = process_set;
    record.generation = generation;
    record.path = static_cast<uint8_t>(Path::kPlanned);
    record.state = static_cast<uint8_t>(State::kStarted);
    write(&templates[templates_ % kTemplates], record, templates_);
    ++templates_;
  }
  put(&header().templates, templates_);
  return first;
}

void FlightRecorder::can_show_stacks(int signal, int fd) {
  std::atomic_ref<int32_t>(header().stack_fd).store(fd);
  std::atomic_ref<int32_t>(header().stack_signal).store(signal);
}

void FlightRecorder::leave() { std::atomic_ref<int32_t>(header().left).store(1); }

std::string FlightRecorder::mail() const { return read_mail(memory()); }

}  // namespace rueda::flight
