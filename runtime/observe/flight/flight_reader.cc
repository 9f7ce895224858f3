#include "runtime/observe/flight/flight_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "collectives/base/utf8.h"
#include "collectives/host/fence.h"

namespace rueda::flight {
namespace {

uint64_t load(const void* at, std::memory_order order = std::memory_order_relaxed) {
  return std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(const_cast<void*>(at))).load(order);
}

void store(void* at, uint64_t value, std::memory_order order = std::memory_order_relaxed) {
  std::atomic_ref<uint64_t>(*static_cast<uint64_t*>(at)).store(value, order);
}

template <typename T>
T copy(const std::byte* at) {
  static_assert(sizeof(T) % kWord == 0);
  uint64_t words[sizeof(T) / kWord];
  for (size_t i = 0; i < std::size(words); ++i) words[i] = load(at + i * kWord);
  T value;
  std::memcpy(&value, words, sizeof(T));
  return value;
}

// Printable UTF-8 whatever the bytes are.
std::string text_of(const char* bytes, size_t room) {
  return printable_text({bytes, strnlen(bytes, room)});
}

std::string site_of(ByteView memory, uint32_t number, uint64_t known) {
  if (number == 0 || number > kSites || number > known) return "";
  const auto site = copy<Site>(memory.data() + kSitesOffset + (number - 1) * sizeof(Site));
  return text_of(site.text, std::min<size_t>(site.length, kSiteBytes));
}

// False: what it says cannot be.
bool convert(ByteView memory, const Record& record, uint64_t sites, Operation* out) {
  if (!is_valid(static_cast<CollectiveKind>(record.kind)) ||
      !is_valid(static_cast<DType>(record.dtype)) || record.state == 0 ||
      record.state > static_cast<uint8_t>(State::kFailed) ||
      record.path > static_cast<uint8_t>(Path::kDirect)) {
    return false;
  }
  out->name = text_of(record.name, kNameBytes);
  out->kind = static_cast<CollectiveKind>(record.kind);
  out->dtype = static_cast<DType>(record.dtype);
  if (is_valid(static_cast<ReduceOp>(record.reduce_op)))
    out->reduce_op = static_cast<ReduceOp>(record.reduce_op);
  out->shape.assign(record.shape, record.shape + std::min<size_t>(record.ndim, kMaxDims));
  out->bytes = record.bytes;
  out->process_set = record.process_set;
  if (is_point_to_point(out->kind)) out->peer = std::max(0, record.peer) - 1;
  out->generation = record.generation;
  out->batch = record.batch;
  out->state = static_cast<State>(record.state);
  out->path = static_cast<Path>(record.path);
  out->submitted_ns = record.submitted_ns;
  out->agreed_ns = record.agreed_ns;
  out->started_ns = record.started_ns;
  out->ended_ns = record.ended_ns;
  out->site = site_of(memory, record.site, sites);
  out->thread = record.thread;
  return true;
}

// Empty: overwritten or half written.
bool read_record(ByteView memory, size_t offset, uint64_t number, Record* out) {
  const std::byte* at = memory.data() + offset;
  const uint64_t before = load(at, std::memory_order_acquire);
  *out = copy<Record>(at);
  host::seqlock_fence(std::memory_order_acquire);
  return before == number + 1 && load(at) == before;
}

void read_records(ByteView memory, const Header& header, std::vector<Operation>* out) {
  const uint64_t end = header.submitted;
  for (uint64_t n = end > kRecords ? end - kRecords : 0; n < end; ++n) {
    Record record;
    Operation operation;
    if (!read_record(memory, kRecordsOffset + n % kRecords * sizeof(Record), n, &record)) continue;
    if (!convert(memory, record, header.sites, &operation)) continue;
    if (operation.path == Path::kPlanned && operation.state != State::kSubmitted)
      continue;  // below
    operation.number = n;
    out->push_back(std::move(operation));
  }
}

void read_planned(ByteView memory, const Header& header, std::vector<Operation>* out) {
  const uint64_t end = header.planned;
  uint64_t left = kRecords;  // operations, whatever the entries claim
  std::vector<Operation> found;
  for (uint64_t n = end; n > 0 && end - n < kPlanEntries && left > 0; --n) {
    const auto entry =
        copy<PlanEntry>(memory.data() + kPlanOffset + (n - 1) % kPlanEntries * sizeof(PlanEntry));
    const uint64_t first = entry.members >> 16, count = entry.members & 0xffff;
    if (count > kTemplates) continue;
    for (uint64_t i = count; i > 0 && left > 0; --i) {
      const uint64_t number = first + i - 1;
      Record record;
      Operation operation;
      if (!read_record(memory, kTemplatesOffset + number % kTemplates * sizeof(Record), number,
                       &record) ||
          !convert(memory, record, header.sites, &operation)) {
        continue;
      }
      --left;
      operation.path = Path::kPlanned;
      operation.state = (entry.when & 1) != 0 ? State::kDone : State::kStarted;
      operation.submitted_ns = operation.started_ns = static_cast<int64_t>(entry.when >> 1);
      operation.agreed_ns = operation.ended_ns = 0;
      operation.batch = entry.number;
      found.push_back(std::move(operation));
    }
  }
  out->insert(out->end(), found.rbegin(), found.rend());
}

bool is_waiting(State state) { return state != State::kDone && state != State::kFailed; }

void find_waiting(ByteView memory, const Header& header, std::vector<int64_t>* since) {
  const uint64_t end = header.submitted;
  uint64_t left = end - std::min(header.ended, end);
  for (uint64_t n = end; n > 0 && end - n < kRecords && left > 0; --n) {
    const std::byte* at = memory.data() + kRecordsOffset + (n - 1) % kRecords * sizeof(Record);
    const auto word = [at](size_t offset) { return load(at + offset / kWord * kWord); };
    const auto byte = [&](size_t offset) {
      return static_cast<uint8_t>(word(offset) >> (offset % kWord * 8));
    };
    const uint64_t stamp = load(at, std::memory_order_acquire);
    const auto submitted = static_cast<int64_t>(word(offsetof(Record, submitted_ns)));
    const auto kind = static_cast<CollectiveKind>(byte(offsetof(Record, kind)));
    const auto path = static_cast<Path>(byte(offsetof(Record, path)));
    const auto state = static_cast<State>(byte(offsetof(Record, state)));
    host::seqlock_fence(std::memory_order_acquire);
    if (stamp != n || load(at) != stamp || !is_waiting(state)) continue;
    --left;
    const bool in_plan = path == Path::kPlanned && state != State::kSubmitted;  // counted there
    if (!in_plan && kind != CollectiveKind::kJoin) since->push_back(submitted);
  }
}

void find_waiting_planned(ByteView memory, const Header& header, std::vector<int64_t>* since) {
  const uint64_t end = header.planned;
  uint64_t left = end - std::min(header.planned_ended, end);
  for (uint64_t n = end; n > 0 && end - n < kPlanEntries && left > 0; --n) {
    const auto entry =
        copy<PlanEntry>(memory.data() + kPlanOffset + (n - 1) % kPlanEntries * sizeof(PlanEntry));
    const uint64_t count = entry.members & 0xffff;
    if ((entry.when & 1) != 0 || count > kTemplates) continue;
    --left;
    const size_t room = kRecords - std::min(since->size(), kRecords);
    since->insert(since->end(), std::min<size_t>(count, room),
                  static_cast<int64_t>(entry.when >> 1));
  }
}

const std::byte* aligned(ByteView memory) {
  return reinterpret_cast<uintptr_t>(memory.data()) % kWord == 0 ? memory.data() : nullptr;
}

}  // namespace

std::string Operation::title() const {
  const size_t dot = name.find('.');
  if (kind == CollectiveKind::kJoin) return "join";
  if (kind == CollectiveKind::kProcessSet) return "the change of the process sets";
  if (dot == std::string::npos) return "'" + name + "'";
  return name.substr(0, dot) + " '" + name.substr(dot + 1) + "'";
}

Result<Snapshot> read_flight(ByteView memory) {
  if (memory.size() < kTotalBytes || aligned(memory) == nullptr) {
    return Status(Code::kDataLoss, "this is no flight recorder's memory: it has " +
                                       std::to_string(memory.size()) + " bytes instead of " +
                                       std::to_string(kTotalBytes));
  }
  const auto header = copy<Header>(memory.data());
  if (header.magic == 0) return failed_precondition("no rank has used this flight recorder yet");
  if (header.magic != kMagic || header.version != kVersion || header.total_bytes != kTotalBytes ||
      header.layout != layout_hash()) {
    return Status(Code::kDataLoss,
                  "this is no flight recorder's memory of this version of rueda; read it with the "
                  "rueda that wrote it");
  }
  Snapshot out;
  out.rank = header.rank;
  out.size = header.size;
  out.pid = header.pid;
  out.left = header.left != 0;
  out.epoch = header.epoch;
  out.stack_signal = header.stack_signal;
  out.stack_fd = header.stack_fd;
  out.monotonic_ns = header.monotonic_ns;
  out.realtime_ns = header.realtime_ns;
  out.host = text_of(header.host, sizeof(header.host));
  out.job = text_of(header.job, sizeof(header.job));
  out.submitted = header.submitted;
  out.ended = header.ended;
  out.planned = header.planned;
  out.planned_ended = header.planned_ended;
  out.planned_tensors = header.planned_tensors;
  out.waited_rank = static_cast<Rank>(header.waited >> kWaitedShift);
  out.waited_ms = static_cast<int64_t>(header.waited & ((uint64_t{1} << kWaitedShift) - 1));
  read_records(memory, header, &out.operations);
  const auto middle = static_cast<std::ptrdiff_t>(out.operations.size());
  read_planned(memory, header, &out.operations);
  std::inplace_merge(
      out.operations.begin(), out.operations.begin() + middle, out.operations.end(),
      [](const Operation& a, const Operation& b) { return a.submitted_ns < b.submitted_ns; });
  if (out.operations.size() > kRecords)
    out.operations.erase(out.operations.begin(),
                         out.operations.end() - static_cast<std::ptrdiff_t>(kRecords));
  return out;
}

void shift_times(Snapshot* snapshot, int64_t ns) {
  const auto shift = [ns](int64_t* time) {
    const uint64_t sum = static_cast<uint64_t>(*time) + static_cast<uint64_t>(ns);
    if (*time != 0) *time = static_cast<int64_t>(sum);
  };
  shift(&snapshot->monotonic_ns);
  for (Operation& operation : snapshot->operations) {
    for (int64_t* time : {&operation.submitted_ns, &operation.agreed_ns, &operation.started_ns,
                          &operation.ended_ns}) {
      shift(time);
    }
  }
}

std::vector<int64_t> waiting_since(ByteView memory) {
  std::vector<int64_t> since;
  if (memory.size() < kTotalBytes || aligned(memory) == nullptr) return since;
  const auto header = copy<Header>(memory.data());
  if (header.magic != kMagic || header.version != kVersion || header.layout != layout_hash())
    return since;
  find_waiting(memory, header, &since);
  find_waiting_planned(memory, header, &since);
  return since;
}

std::optional<counters::Progress> read_progress(ByteView memory) {
  if (memory.size() < kTotalBytes || aligned(memory) == nullptr) return std::nullopt;
  const auto header = copy<Header>(memory.data());
  if (header.magic != kMagic) return std::nullopt;
  counters::Progress progress;
  progress.submitted = header.submitted;
  progress.ended = header.ended;
  progress.planned_batches = header.planned;
  progress.planned_tensors = header.planned_tensors;
  return progress;
}

std::optional<Vitals> read_vitals(ByteView memory) {
  constexpr int64_t kMost = int64_t{1} << 52;  // sums of some hundred of these do not overflow
  if (memory.size() < kTotalBytes || aligned(memory) == nullptr) return std::nullopt;
  const auto header = copy<Header>(memory.data());
  if (header.magic != kMagic || header.version != kVersion || header.layout != layout_hash())
    return std::nullopt;
  Vitals out;
  out.rank = std::max(0, header.rank);
  out.size = std::max(0, header.size);
  out.pid = header.pid;
  out.left = header.left != 0;
  out.epoch = header.epoch;
  out.host =
      clean_text({header.host, strnlen(header.host, sizeof(header.host))}, sizeof(header.host));
  out.submitted = header.submitted;
  out.ended = std::min(header.ended, header.submitted);
  out.planned = header.planned;
  out.planned_ended = std::min(header.planned_ended, header.planned);
  const auto written = copy<stats::Numbers>(memory.data() + kStatsOffset);
  auto words = std::bit_cast<std::array<int64_t, stats::kWords>>(written);
  for (int64_t& word : words) word = std::clamp<int64_t>(word, 0, kMost);
  out.stats = std::bit_cast<stats::Numbers>(words);
  out.stats.transport = written.transport;
  return out;
}

std::string read_mail(ByteView memory) {
  if (memory.size() < kTotalBytes || aligned(memory) == nullptr) return "";
  const std::byte* at = memory.data() + kMailOffset;
  const uint64_t before = load(at, std::memory_order_acquire);
  if (before == 0 || before % 2 != 0) return "";
  const auto mail = copy<Mailbox>(at);
  host::seqlock_fence(std::memory_order_acquire);
  if (load(at) != before) return "";
  return clean_text({mail.text, strnlen(mail.text, std::min<size_t>(mail.length, kMailBytes))},
                    kMailBytes);
}

void write_mail(ByteSpan memory, const std::string& text) {
  std::byte* at = memory.data() + kMailOffset;
  const uint64_t stamp = (load(at) + 1) | 1;
  store(at, stamp);
  host::seqlock_fence(std::memory_order_release);
  const size_t length = std::min(text.size(), kMailBytes);
  store(at + offsetof(Mailbox, length), length);
  for (size_t i = 0; i < (length + kWord - 1) / kWord; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i * kWord, std::min(kWord, length - i * kWord));
    store(at + offsetof(Mailbox, text) + i * kWord, word);
  }
  store(at, stamp + 1, std::memory_order_release);
}

}  // namespace rueda::flight
