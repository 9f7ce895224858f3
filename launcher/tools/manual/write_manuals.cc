// write_manuals FOLDER: the manual pages and completions of both programs, as files of a prefix's
// share/. The build runs it; it is not installed.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "launcher/tools/manual/manual.h"

namespace {

bool write(const std::filesystem::path& path, const std::string& text) {
  std::error_code failed;
  std::filesystem::create_directories(path.parent_path(), failed);
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) std::fprintf(stderr, "write_manuals: cannot write %s\n", path.c_str());
  return static_cast<bool>(out);
}

bool write_all(const std::filesystem::path& share, const rueda::launcher::Manual& manual) {
  const std::string& name = manual.program;
  return write(share / "man/man1" / (name + ".1"), man_page(manual)) &&
         write(share / "bash-completion/completions" / name, bash_completion(manual)) &&
         write(share / "zsh/site-functions" / ("_" + name), zsh_completion(manual)) &&
         write(share / "fish/vendor_completions.d" / (name + ".fish"), fish_completion(manual));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: write_manuals FOLDER\n", stderr);
    return 2;
  }
  const bool well =
      write_all(argv[1], rueda::launcher::manual_of_ruedarun(RUEDA_LAUNCHER_VERSION)) &&
      write_all(argv[1], rueda::launcher::manual_of_rueda(RUEDA_LAUNCHER_VERSION));
  return well ? 0 : 1;
}
