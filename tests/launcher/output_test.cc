#include <catch2/catch.hpp>

#include "launcher/output/line_splitter.h"
#include "launcher/output/output_format.h"

using namespace rueda::launcher;

namespace {

// The pieces as text, ends shown as $ for '\n' and < for '\r'.
class Collector {
 public:
  explicit Collector(bool keep_redraws, size_t max_piece = LineSplitter::kMaxPiece)
      : splitter_(keep_redraws, max_piece) {}
  Collector& feed(std::string_view bytes) {
    splitter_.feed(bytes, emit_);
    return *this;
  }
  std::string finish() {
    splitter_.finish(emit_);
    return text_;
  }

 private:
  LineSplitter splitter_;
  std::string text_;
  LineSplitter::Emit emit_ = [this](const Piece& piece) {
    text_ += std::string(piece.text) + (piece.end == '\n' ? "$" : "<");
  };
};

}  // namespace

TEST_CASE("lines come out whole, however the bytes arrive", "[output]") {
  const std::string text = "one\n\ntwo\r\nthree";
  for (size_t step = 1; step <= text.size(); ++step) {
    Collector collector(false);
    for (size_t at = 0; at < text.size(); at += step) collector.feed(text.substr(at, step));
    CHECK(collector.finish() == "one$$two$three$");
  }
}

TEST_CASE("a file gets the last redraw of a progress bar only", "[output]") {
  CHECK(Collector(false).feed("10%\r20%\r30%\nnext\n").finish() == "30%$next$");
  CHECK(Collector(false).feed("10%\r").feed("20%\r").feed("\n").finish() == "20%$");
  CHECK(Collector(false).feed("\r 5%").feed("\r 9%").finish() == " 9%$");
  CHECK(Collector(false).feed("99%\r").finish() == "99%$");
}

TEST_CASE("a terminal gets every redraw, at once", "[output]") {
  CHECK(Collector(true).feed("10%\r20%\r30%\n").finish() == "10%<20%<30%$");
  Collector trailing(true);
  CHECK(trailing.feed("10%\r").feed("20%\r").feed("\n").finish() == "10%<20%<20%$");
  Collector leading(true);
  CHECK(leading.feed("\r10%").feed("\r20%").feed("\n").finish() == "10%<20%<20%$");
}

TEST_CASE("long lines are cut, but not inside a character", "[output]") {
  CHECK(Collector(false, 4).feed("abcdefghij\n").finish() == "abcd$efgh$ij$");
  CHECK(Collector(false, 4).feed("abcd\n").finish() == "abcd$");
  CHECK(Collector(false, 4).feed("abcé€\n").finish() == "abc$é$€$");
  const std::string broken(10, '\x80');  // no character at all: cut anywhere, lose nothing
  CHECK(Collector(false, 4).feed(broken).finish().size() == 10 + 3);
}

TEST_CASE("a piece carries its rank in the style of its place", "[output]") {
  bool redraw = false;
  std::string out;
  const OutputStyle file{true, false, false, 2};
  append_piece(file, 3, Stream::kStdout, {"a", '\n'}, &redraw, &out);
  append_piece(file, 12, Stream::kStderr, {"b", '\n'}, &redraw, &out);
  CHECK(out == "[3]<stdout>: a\n[12]<stderr>: b\n");

  out.clear();
  const OutputStyle terminal{true, true, false, 2};
  append_piece(terminal, 3, Stream::kStderr, {"a", '\n'}, &redraw, &out);
  CHECK(out == " 3│ a\n");

  out.clear();
  append_piece({true, true, true, 1}, 0, Stream::kStdout, {"a", '\n'}, &redraw, &out);
  CHECK(out == "\x1b[36m0│\x1b[0m a\n");

  out.clear();
  append_piece({false, false, false, 1}, 0, Stream::kStdout, {"a", '\n'}, &redraw, &out);
  CHECK(out == "a\n");
}

TEST_CASE("a line wipes out the progress bar it is printed over", "[output]") {
  bool redraw = false;
  std::string out;
  const OutputStyle terminal{true, true, false, 1};
  append_piece(terminal, 0, Stream::kStdout, {"50% of a long bar", '\r'}, &redraw, &out);
  CHECK(redraw);
  out.clear();
  append_piece(terminal, 1, Stream::kStdout, {"hi", '\n'}, &redraw, &out);
  CHECK(out == "1│ hi\x1b[K\n");
  CHECK_FALSE(redraw);
}
