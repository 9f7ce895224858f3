// The same line from several ranks is one, and nothing is lost or out of order.
#include "launcher/output/line_folder.h"

#include <catch2/catch.hpp>
#include <random>

#include "collectives/base/number_text.h"

using namespace rueda;
using namespace rueda::launcher;
using std::chrono::milliseconds;

namespace {

class Folded {
 public:
  explicit Folded(int ranks) : folder_(ranks) {}
  Folded& add(Rank rank, const std::string& text, Stream stream = Stream::kStdout) {
    folder_.add(rank, stream, text, "", now_);
    folder_.release_due(now_, print_);
    return *this;
  }
  Folded& pass(LineFolder::Duration time) {
    now_ += time;
    folder_.release_due(now_, print_);
    return *this;
  }
  Folded& before_redraw_of(Rank rank) {
    folder_.release_rank(rank, print_);
    return *this;
  }
  std::string all() {
    folder_.release_all(print_);
    CHECK_FALSE(folder_.next_deadline());
    return text_;
  }
  const std::string& text() const { return text_; }
  const std::vector<LineFolder::Line>& lines() const { return lines_; }

 private:
  LineFolder folder_;
  LineFolder::TimePoint now_{};
  std::string text_;
  std::vector<LineFolder::Line> lines_;
  LineFolder::Print print_ = [this](const LineFolder::Line& line) {
    lines_.push_back(line);
    text_ +=
        ranges_text(line.ranks) + (line.stream == Stream::kStdout ? " " : "! ") + line.text + "$";
  };
};

}  // namespace

TEST_CASE("equal lines are one, with their ranks", "[line_folder]") {
  CHECK(Folded(4).add(2, "a").add(0, "a").add(1, "a").all() == "0-2 a$");
  CHECK(Folded(4).add(0, "a").add(3, "a").add(1, "b").all() == "0,3 a$1 b$");
  CHECK(Folded(2).add(0, "a").add(1, "a", Stream::kStderr).all() == "0 a$1! a$");
}

TEST_CASE("a line that all have written leaves at once, others after a moment", "[line_folder]") {
  Folded complete(2);
  complete.add(0, "a").add(1, "a");
  CHECK(complete.text() == "0-1 a$");
  Folded alone(2);
  alone.add(0, "a").pass(LineFolder::kWindow - milliseconds(1));
  CHECK(alone.text().empty());
  alone.pass(milliseconds(1)).add(1, "a");
  CHECK(alone.text() == "0 a$");
  CHECK(alone.all() == "0 a$1 a$");
}

TEST_CASE("a rank joins only behind what it has written before", "[line_folder]") {
  CHECK(Folded(3).add(0, "a").add(1, "b").add(1, "a").all() == "1 b$0-1 a$");
  CHECK(Folded(3).add(0, "a").add(0, "b").add(1, "b").add(1, "a").all() == "0 a$0-1 b$1 a$");
  // The same line twice from each: twice, not once and not three times.
  CHECK(Folded(3).add(0, "a").add(0, "a").add(1, "a").add(1, "a").all() == "0-1 a$0-1 a$");
}

TEST_CASE("a line that one rank alone has written does not keep its next ones from being folded",
          "[line_folder]") {
  Folded folded(3);
  for (const Rank rank : {1, 0, 2}) {
    for (const char* const text : {"step 1", "step 2", "step 3"}) {
      folded.add(rank, text);
      if (rank == 0) folded.add(0, "saving " + std::string(text));
    }
  }
  CHECK(folded.all() ==
        "0-2 step 1$0 saving step 1$0-2 step 2$0 saving step 2$0-2 step 3$0 saving step 3$");
  // Of three ranks each with lines of its own.
  Folded each(3);
  for (const Rank rank : {0, 1, 2}) {
    for (const char* const text : {"a", "b", "c"})
      each.add(rank, std::to_string(rank) + text).add(rank, text);
  }
  CHECK(each.all() == "0 0a$1 1a$2 2a$0-2 a$0 0b$1 1b$2 2b$0-2 b$0 0c$1 1c$2 2c$0-2 c$");
}

TEST_CASE("a line that is moved is not held up, nor holds up another", "[line_folder]") {
  Folded folded(3);
  folded.add(0, "a").pass(milliseconds(60)).add(1, "b").add(1, "a").pass(milliseconds(40));
  CHECK(folded.text() == "1 b$0-1 a$");
}

TEST_CASE("a redraw of a rank waits for nothing but its own lines", "[line_folder]") {
  Folded folded(3);
  folded.add(0, "a").add(1, "b").add(2, "c").before_redraw_of(1);
  CHECK(folded.text() == "0 a$1 b$");
  CHECK(folded.before_redraw_of(1).text() == "0 a$1 b$");
  CHECK(folded.all() == "0 a$1 b$2 c$");
}

TEST_CASE("too much to hold leaves early", "[line_folder]") {
  Folded folded(2);
  const std::string text(LineFolder::kMaxHeld / 2, 'x');
  folded.add(0, text).add(0, text);
  CHECK(folded.text().empty());
  folded.add(0, "more");
  CHECK(folded.lines().size() == 1);
}

TEST_CASE("every rank's lines come out whole and in order, whatever the others write",
          "[line_folder]") {
  const unsigned seed = GENERATE(1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u);
  std::mt19937 random(seed);
  constexpr int kRanks = 5;
  Folded folded(kRanks);
  std::vector<std::string> written(kRanks), printed(kRanks);
  for (int i = 0; i < 2000; ++i) {
    const auto rank = static_cast<Rank>(random() % kRanks);
    const std::string text(1, static_cast<char>('a' + random() % 3));
    written[static_cast<size_t>(rank)] += text;
    folded.add(rank, text, random() % 2 == 0 ? Stream::kStdout : Stream::kStderr);
    if (random() % 7 == 0) folded.pass(milliseconds(random() % 40));
    if (random() % 31 == 0) folded.before_redraw_of(rank);
  }
  folded.all();
  for (const auto& line : folded.lines()) {
    for (const Rank rank : line.ranks) printed[static_cast<size_t>(rank)] += line.text;
  }
  CHECK(printed == written);
  CHECK(folded.lines().size() < 1500);  // many were folded
}
