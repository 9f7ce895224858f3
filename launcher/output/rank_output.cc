#include "launcher/output/rank_output.h"

namespace rueda::launcher {
namespace {

constexpr size_t kRememberedLines = 10;
constexpr size_t kRememberedBytes = 400;  // of each line

}  // namespace

RankOutput::RankOutput(Rank rank, Console* console)
    : rank_(rank),
      console_(console),
      splitters_{LineSplitter(console->keeps_redraws(Stream::kStdout)),
                 LineSplitter(console->keeps_redraws(Stream::kStderr))} {}

LineSplitter::Emit RankOutput::printer(Stream stream) {
  return [this, stream](const Piece& piece) {
    if (stream == Stream::kStderr && piece.end == '\n') remember(piece.text);
    console_->print(rank_, stream, piece);
  };
}

void RankOutput::remember(std::string_view line) {
  if (line.find_first_not_of(" \t") == std::string_view::npos) return;
  words_.emplace_back(line.substr(0, kRememberedBytes));
  if (words_.size() > kRememberedLines) words_.pop_front();
}

void RankOutput::take(Stream stream, std::string_view bytes) {
  if (copies_ != nullptr) copies_->write(rank_, stream, bytes);
  splitters_[static_cast<int>(stream)].feed(bytes, printer(stream));
}

void RankOutput::end(Stream stream) {
  splitters_[static_cast<int>(stream)].finish(printer(stream));
}

}  // namespace rueda::launcher
