#include "launcher/output/console.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>

#include "collectives/base/printable_lines.h"

namespace rueda::launcher {
namespace {

constexpr size_t kCongested = 1 << 20;

bool same_file(int a, int b) {
  struct stat one = {}, other = {};
  return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev &&
         one.st_ino == other.st_ino;
}

// "2026-01-31 12:00:00.250 ", local time.
std::string time_text() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts = {};
  localtime_r(&now.tv_sec, &parts);
  char seconds[32], text[48];
  strftime(seconds, sizeof(seconds), "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(text, sizeof(text), "%s.%03ld ", seconds, now.tv_nsec / 1'000'000);
  return text;
}

}  // namespace

Console::Console(bool prefix, bool timestamp, bool colour_allowed, int num_ranks,
                 std::optional<bool> fold)
    : timestamp_(timestamp),
      num_ranks_(num_ranks),
      folder_(num_ranks),
      printer_([this](const LineFolder::Line& line) { print_line(line); }) {
  const int fds[2] = {STDOUT_FILENO, STDERR_FILENO};
  for (int i = 0; i < 2; ++i) {
    Place& place = places_[i];
    place.style.prefix = prefix;
    place.style.terminal = isatty(fds[i]) == 1;
    place.style.colour = place.style.terminal && colour_allowed;
    place.folds = prefix && num_ranks > 1 && fold.value_or(place.style.terminal);
    place.style.rank_width = static_cast<int>(std::to_string(num_ranks - 1).size());
    if (i == 1 && same_file(fds[0], fds[1])) {
      place.sink = places_[0].sink;
      place.redraw_open = places_[0].redraw_open;
    } else {
      place.sink = std::make_shared<OutputSink>(fds[i]);
      place.redraw_open = std::make_shared<bool>(false);
    }
  }
}

void Console::print(Rank rank, Stream stream, const Piece& piece) {
  if (!shown_.empty() && !shown_.contains(rank)) return;
  Place& place = places_[static_cast<int>(stream)];
  scratch_ = timestamp_ ? time_text() : "";
  if (place.folds && piece.end == '\n') {
    folder_.add(rank, stream, piece.text, scratch_, std::chrono::steady_clock::now());
    return;
  }
  if (place.folds) folder_.release_rank(rank, printer_);  // a redraw, behind the lines before it
  append_piece(place.style, rank, stream, piece, place.redraw_open.get(), &scratch_);
  place.sink->queue(scratch_);
}

void Console::print_line(const LineFolder::Line& line) {
  Place& place = places_[static_cast<int>(line.stream)];
  std::string text = line.time;
  append_line(place.style, line.ranks, line.stream, line.text, place.redraw_open.get(), &text);
  place.sink->queue(text);
}

void Console::show_only(std::set<Rank> ranks) {
  shown_ = std::move(ranks);
  folder_ = LineFolder(shown_.empty() ? num_ranks_ : static_cast<int>(shown_.size()));
}

void Console::release_lines() { folder_.release_all(printer_); }

std::optional<LineFolder::TimePoint> Console::next_deadline() const {
  return folder_.next_deadline();
}

void Console::say(const std::string& text) {
  release_lines();  // what has been written before
  Place& place = places_[static_cast<int>(Stream::kStderr)];
  if (*place.redraw_open) place.sink->queue("\n");
  *place.redraw_open = false;
  place.sink->queue("ruedarun: " + printable_lines(text) + "\n");
}

bool Console::congested() const {
  return places_[0].sink->pending() > kCongested || places_[1].sink->pending() > kCongested;
}

bool Console::pending() const {
  return places_[0].sink->pending() > 0 || places_[1].sink->pending() > 0;
}

void Console::add_to_poll(std::vector<pollfd>* fds) const {
  for (const Place& place : places_) {
    if (place.sink->pending() > 0) fds->push_back({place.sink->fd(), POLLOUT, 0});
  }
}

void Console::flush() {
  folder_.release_due(std::chrono::steady_clock::now(), printer_);
  for (const Place& place : places_) place.sink->flush();
}

}  // namespace rueda::launcher
