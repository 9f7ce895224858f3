// Whatever bytes a reader is given, it ends, reads nothing outside of them and gives back sane
// values.
#include <cstring>
#include <random>

#include <catch2/catch.hpp>

#include "collectives/base/utf8.h"
#include "launcher/observe/recorder_files.h"
#include "launcher/observe/status_report.h"
#include "runtime/observe/flight/flight_reader.h"
#include "runtime/observe/flight/flight_recorder.h"
#include "runtime/observe/stats/summary.h"
#include "tests/support/folder.h"

using namespace rueda;

namespace {

// Exactly as long as the memory is, so that a sanitizer sees the first byte behind it.
struct Bytes {
  std::vector<uint64_t> words = std::vector<uint64_t>(flight::kTotalBytes / 8);
  ByteView view() const { return std::as_bytes(std::span(words)); }
  std::byte* at(size_t offset) { return reinterpret_cast<std::byte*>(words.data()) + offset; }
};

Bytes filled() {
  const auto recorder = flight::FlightRecorder::open(-1, {1, 4, 1, "host", ""});
  wire::Request request;
  for (int i = 0; i < 5000; ++i) {
    request.name = "allreduce.tensor" + std::to_string(i % 100);
    request.shape = {i, 3};
    const auto record =
        recorder->submitted(request, i % 3, recorder->site("a.py:" + std::to_string(i % 50)),
                            flight::Path::kNegotiated);
    if (i % 2 == 0) recorder->ended(record, i, true);
  }
  const uint64_t first = recorder->plan({&request, &request}, 0, 1);
  for (uint64_t i = 0; i < 3000; ++i) recorder->entered(first, 2, i, static_cast<int64_t>(i));
  Bytes bytes;
  std::memcpy(bytes.at(0), recorder->memory().data(), flight::kTotalBytes);
  return bytes;
}

bool can_be_shown(const std::string& text) {
  return is_valid_utf8(text) &&
         text.find_first_of(std::string("\x00\x01\x1b\x7f\n", 5)) == std::string::npos;
}

// Uses everything that the reader gives.
size_t walk(ByteView memory) {
  const auto snapshot = flight::read_flight(memory);
  if (!snapshot.ok()) return snapshot.status().message().size();
  size_t sum = snapshot.value().host.size();
  CHECK(snapshot.value().operations.size() <= flight::kRecords);
  for (const auto& operation : snapshot.value().operations) {
    if (operation.shape.size() > flight::kMaxDims || operation.name.size() > flight::kNameBytes ||
        operation.site.size() > flight::kSiteBytes) {
      FAIL("too long: " << operation.name);
    }
    if (!can_be_shown(operation.name) || !can_be_shown(operation.site)) FAIL("not text");
    sum += launcher::describe(operation).size();
  }
  launcher::RankRecord record;
  record.flight = snapshot.value();
  if (!is_valid_utf8(launcher::status_json({"job", "train.py", 1, {record}}))) FAIL("not JSON");
  for (const std::string& line : launcher::explain({record}, 1)) {
    if (!can_be_shown(line)) FAIL("not a line");
  }
  if (flight::waiting_since(memory).size() > 2 * flight::kRecords) FAIL("too many");
  return sum + flight::read_mail(memory).size();
}

TEST_CASE("vitals are read from the header and the stats page alone", "[flight]") {
  auto recorder = flight::FlightRecorder::open(-1, {2, 4, 7, "node", "job", "shm+tcp"});
  REQUIRE(recorder != nullptr);
  recorder->stats().message_ended(CollectiveKind::kSend, 9);
  const auto vitals = flight::read_vitals(recorder->memory());
  REQUIRE(vitals.has_value());
  CHECK(vitals->rank == 2);
  CHECK(vitals->size == 4);
  CHECK(vitals->epoch == 7);
  CHECK(vitals->host == "node");
  CHECK(vitals->stats.bytes[static_cast<size_t>(CollectiveKind::kSend)] == 9);
  CHECK(stats::transport_of(vitals->stats) == "shm+tcp");
  CHECK_FALSE(flight::read_vitals(recorder->memory().first(100)).has_value());
  // Numbers that cannot be do no harm.
  auto& page = recorder->stats().page();
  page.waiting_ns = -5;
  page.bytes[0] = INT64_MAX;
  page.late_of[3] = INT64_MIN;
  const auto wrong = flight::read_vitals(recorder->memory());
  REQUIRE(wrong.has_value());
  CHECK(wrong->stats.waiting_ns == 0);
  CHECK(wrong->stats.bytes[0] == int64_t{1} << 52);
  CHECK(wrong->stats.late_of[3] == 0);
}

}  // namespace

TEST_CASE("memory of another size, version or machine is refused", "[flight]") {
  Bytes bytes = filled();
  CHECK(flight::read_flight(bytes.view()).ok());
  CHECK_FALSE(flight::read_flight(bytes.view().first(flight::kTotalBytes - 8)).ok());
  CHECK_FALSE(flight::read_flight({}).ok());
  for (const size_t offset :
       {offsetof(flight::Header, magic), offsetof(flight::Header, version),
        offsetof(flight::Header, layout), offsetof(flight::Header, total_bytes)}) {
    Bytes other = bytes;
    *other.at(offset) ^= std::byte{1};
    CHECK(flight::read_flight(other.view()).status().code() == Code::kDataLoss);
  }
}

TEST_CASE("what waits is found without reading records", "[flight]") {
  const size_t count = GENERATE(50, flight::kRecords + 100);
  const auto recorder = flight::FlightRecorder::open(-1, {0, 2, 1, "host", ""});
  const auto agrees = [&] {
    std::vector<int64_t> all;
    const flight::Snapshot whole = flight::read_flight(recorder->memory()).value();
    for (const flight::Operation& one : whole.operations) {
      if (!one.ended() && one.kind != CollectiveKind::kJoin) all.push_back(one.submitted_ns);
    }
    std::vector<int64_t> found = flight::waiting_since(recorder->memory());
    std::ranges::sort(all);
    std::ranges::sort(found);
    CHECK((found == all));
    return found.size();
  };
  CHECK(agrees() == 0);
  wire::Request request;
  std::vector<flight::FlightRecorder::RecordNumber> numbers;
  for (size_t i = 0; i < count; ++i) {
    request.name = "allreduce." + std::to_string(i);
    numbers.push_back(recorder->submitted(request, 0, 0, flight::Path::kNegotiated));
    if (i % 7 != 0) recorder->ended(numbers.back(), 1, i % 2 == 0);
  }
  CHECK(agrees() == (count == 50 ? 8 : 585));  // numbers 100 to 4195 by then
  for (const auto number : numbers) recorder->ended(number, 2, true);
  CHECK(agrees() == 0);
}

TEST_CASE("what waits in a step plan is found, but no join", "[flight]") {
  const auto recorder = flight::FlightRecorder::open(-1, {0, 2, 1, "host", ""});
  const auto found = [&] {
    std::vector<int64_t> since = flight::waiting_since(recorder->memory());
    std::ranges::sort(since);
    return since;
  };
  wire::Request request;
  request.kind = CollectiveKind::kJoin;
  recorder->submitted(request, 0, 0, flight::Path::kNegotiated);
  request.kind = CollectiveKind::kAllreduce;
  const auto planned = recorder->submitted(request, 0, 0, flight::Path::kCached);
  CHECK(found().size() == 1);
  recorder->planned(planned);  // from now on its batch says it
  CHECK(found().empty());
  const uint64_t first = recorder->plan({&request, &request, &request}, 0, 1);
  for (int64_t batch = 1; batch <= 5; ++batch) {
    const auto entry = recorder->entered(first, 3, static_cast<uint64_t>(batch), 100 * batch);
    if (batch != 2 && batch != 5) recorder->finished(entry, 3);
  }
  CHECK(found() == std::vector<int64_t>{200, 200, 200, 500, 500, 500});
}

TEST_CASE("damaged memory is read without harm", "[flight]") {
  const Bytes good = filled();
  std::mt19937_64 random(20240607);
  const int rounds = 60;
  for (int round = 0; round < rounds; ++round) {
    Bytes bad = good;
    // The header's counters, then anything.
    const size_t from = round % 2 == 0 ? offsetof(flight::Header, rank) : flight::kMailOffset;
    const size_t to = round % 2 == 0 ? sizeof(flight::Header) : flight::kTotalBytes;
    const size_t changes = round % 2 == 0 ? 8 : 200000;
    for (size_t i = 0; i < changes; ++i)
      *bad.at(from + random() % (to - from)) = static_cast<std::byte>(random());
    walk(bad.view());
  }
  Bytes noise;
  for (uint64_t& word : noise.words) word = random();
  walk(noise.view());
  std::memcpy(noise.at(0), good.words.data(), offsetof(flight::Header, rank));
  walk(noise.view());
}

TEST_CASE("texts of damaged memory are shown as UTF-8, whatever is in them", "[flight]") {
  const std::string broken = "a\xff\xc3(\xed\xa0\x80\xc2\x9b[2J\x1b[2J\n\"b";
  const auto recorder =
      flight::FlightRecorder::open(-1, {0, 1, 1, "node" + broken, "job" + broken});
  wire::Request request;
  request.name = "allreduce." + broken;
  recorder->submitted(request, 0, recorder->site("train" + broken), flight::Path::kNegotiated);
  request.name = "allreduce.";
  while (request.name.size() < 2 * flight::kNameBytes)
    request.name += "\xe2\x82\xac";    // cut in one
  std::string place = "\xe2\x82\xac";  // cut in the middle, too
  while (place.size() < flight::kSiteBytes + 1) place += 's';
  recorder->submitted(request, 0, recorder->site(place), flight::Path::kNegotiated);
  Bytes bytes;
  std::memcpy(bytes.at(0), recorder->memory().data(), flight::kTotalBytes);
  flight::write_mail({bytes.at(0), flight::kTotalBytes}, "first line\n" + broken);

  auto snapshot = flight::read_flight(bytes.view());
  REQUIRE(snapshot.ok());
  const std::string shown =
      "a?"
      "?(?"
      "???[2J?[2J?\"b";
  CHECK(snapshot.value().host == "node" + shown);
  CHECK(snapshot.value().job == "job" + shown);
  REQUIRE(snapshot.value().operations.size() == 2);
  CHECK(snapshot.value().operations[0].name == "allreduce." + shown);
  CHECK(snapshot.value().operations[0].site == "train" + shown);
  const std::string& cut = snapshot.value().operations[1].name;
  CHECK(cut.size() > flight::kNameBytes - 6);
  CHECK(cut.find("\xe2\x82\xac...\xe2\x82\xac") != std::string::npos);
  CHECK(snapshot.value().operations[1].site == std::string(flight::kSiteBytes - 2, 's'));
  CHECK(is_valid_utf8(flight::read_mail(bytes.view())));
  CHECK(flight::read_mail(bytes.view()).starts_with("first line\na?"));

  launcher::RankRecord record;
  record.flight = std::move(snapshot).value();
  record.state = record.stacks = broken;
  const std::string json = launcher::status_json({"job", "python " + broken, 1, {record}});
  CHECK(is_valid_utf8(json));
  CHECK(json.find('\x1b') == std::string::npos);
  const std::string text = launcher::status_text({"job", "python " + broken, 1, {record}});
  CHECK(is_valid_utf8(text));
  CHECK(text.find('\x1b') == std::string::npos);
  for (const std::string& line : launcher::explain({record}, 1)) CHECK(can_be_shown(line));
}

TEST_CASE("files come back as they were written, damaged ones are named", "[flight]") {
  const rueda::testing::Folder folder;
  const Bytes bytes = filled();
  launcher::RankRecord record;
  record.rank = 1;
  record.life = launcher::RankRecord::Life::kDead;
  record.state = "killed by signal 9 (SIGKILL)";
  record.stacks = "line one\nline two\n";
  REQUIRE(launcher::write_flight_file(folder.file("flight"), record, bytes.view(), 12345).ok());
  auto files = launcher::read_flight_files(folder.file("flight"));
  REQUIRE(files.ok());
  REQUIRE(files.value().ranks.size() == 1);
  const launcher::RankRecord& back = files.value().ranks[0];
  CHECK(back.rank == 1);
  CHECK(back.life == record.life);
  CHECK(back.state == record.state);
  CHECK(back.stacks == record.stacks);
  CHECK(files.value().now_ns == 12345);
  REQUIRE(back.flight);
  CHECK(back.flight->operations.size() == flight::kRecords);

  record.rank = 0;
  REQUIRE(
      launcher::write_flight_file(folder.file("flight"), record, bytes.view().first(1000), 1).ok());
  files = launcher::read_flight_files(folder.file("flight"));
  REQUIRE(files.ok());
  CHECK(files.value().ranks.size() == 1);
  REQUIRE(files.value().problems.size() == 1);
  CHECK(files.value().problems[0].find("flight.rank0.bin") != std::string::npos);
  CHECK(launcher::read_flight_files(folder.file("none")).status().code() == Code::kNotFound);
}
