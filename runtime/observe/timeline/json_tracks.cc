// Tracks as Chrome's events: a rank is a process, a row a thread.
#include <algorithm>
#include <utility>

#include <spdlog/fmt/fmt.h>

#include "runtime/observe/timeline/json_array_file.h"
#include "runtime/observe/timeline/json_line.h"
#include "runtime/observe/timeline/tracks.h"

namespace rueda::timeline {
namespace {

std::string decimal(Nanos time) { return fmt::format("{}.{:03}", time / 1000, time % 1000); }

size_t thread_of(const Row& row) {
  return static_cast<size_t>(row.track) * kMostRows + row.number + 1;
}

class JsonTracks final : public TrackWriter {
 public:
  explicit JsonTracks(Origin origin) : origin_(std::move(origin)) {}

  void open(std::string* out) override {
    line(out,
         R"("name":"process_name","ph":"M","pid":{},"args":{{"name":{},)"
         R"("start_time_since_epoch_in_micros":{},"clock_offset_ns":{},"clock_error_ns":{}}})",
         origin_.rank, json_quoted(origin_.name), origin_.epoch_micros, origin_.clock_offset,
         origin_.clock_error);
    line(out, R"("name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}})",
         origin_.rank);
  }

  void row(const Row& row, std::string* out) override {
    const std::string name = row.number == 0
                                 ? name_of(row.track)
                                 : fmt::format("{} {}", name_of(row.track), row.number + 1);
    line(out, R"("name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"{}"}})",
         origin_.rank, thread_of(row), name);
    line(out,
         R"("name":"thread_sort_index","ph":"M","pid":{0},"tid":{1},"args":{{"sort_index":{1}}})",
         origin_.rank, thread_of(row));
  }

  void slice(const Interval& slice, std::string* out) override {
    std::string args = slice.open ? R"("open":1)" : "";
    if (slice.batch)
      args = fmt::format(R"("bytes":{},"batch":"{}")", slice.bytes, to_text(*slice.batch));
    if (slice.tensors != 0) args += fmt::format(R"(,"tensors":{})", slice.tensors);
    const size_t thread = thread_of(slice.row);
    line(out, R"("name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}})",
         json_quoted(slice.name), name_of(slice.row.track), origin_.rank, thread,
         micros(slice.begin), decimal(slice.end - slice.begin), args);
    if (slice.arrow != 0) arrow("s", slice.arrow, thread, slice.begin, out);
    const Nanos last = std::max(slice.begin, slice.end - 1);
    for (const uint64_t number : slice.arrows_end) arrow("f", number, thread, last, out);
  }

  void instant(std::optional<Row> row, std::string_view name, Nanos time,
               std::string* out) override {
    if (row) {
      line(out, R"("name":{},"cat":"{}","ph":"i","pid":{},"tid":{},"ts":{},"s":"t")",
           json_quoted(name), name_of(row->track), origin_.rank, thread_of(*row), micros(time));
    } else {
      line(out, R"("name":{},"ph":"i","pid":{},"tid":0,"ts":{},"s":"p")", json_quoted(name),
           origin_.rank, micros(time));
    }
  }

  void bytes(int64_t bytes, Nanos time, std::string* out) override {
    line(out, R"("name":"{0}","ph":"C","pid":{1},"ts":{2},"args":{{"{0}":{3}}})", kBytesCounter,
         origin_.rank, micros(time), bytes);
  }

 private:
  std::string micros(Nanos time) const {
    return decimal(std::max<Nanos>(0, time + origin_.clock_offset));
  }
  void arrow(const char* phase, uint64_t number, size_t thread, Nanos time, std::string* out) {
    line(out, R"("name":"tensor","cat":"flow","ph":"{}"{},"id":{},"pid":{},"tid":{},"ts":{})",
         phase, *phase == 'f' ? R"(,"bp":"e")" : "", number, origin_.rank, thread, micros(time));
  }

  const Origin origin_;
};

}  // namespace

std::string to_text(const BatchNumber& batch) {
  const std::string set = batch.set == 0 ? "" : fmt::format("s{}.", batch.set);
  if (batch.generation == 0) return fmt::format("{}n{}", set, batch.number);
  return fmt::format("{}p{}.{}", set, batch.generation, batch.number);
}

std::unique_ptr<TrackWriter> json_tracks(Origin origin) {
  return std::make_unique<JsonTracks>(std::move(origin));
}

}  // namespace rueda::timeline
