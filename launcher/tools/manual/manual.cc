#include "launcher/tools/manual/manual.h"

#include <CLI/CLI.hpp>
#include <sstream>

#include "launcher/command/flags.h"
#include "launcher/tools/commands.h"

namespace rueda::launcher {
namespace {

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string escaped(const std::string& text, const std::string& characters) {
  std::string result;
  for (const char c : text) {
    if (characters.find(c) != std::string::npos) result += '\\';
    result += c;
  }
  return result;
}

// For troff: a dot or a quote at the beginning of a line is a command, a dash is a hyphen.
std::string troff(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (result.empty() || result.back() == '\n')) result += "\\&";
    if (c == '\\' || c == '-') result += '\\';
    result += c;
  }
  return result;
}

// "it's" within single quotes of a shell.
std::string shell_word(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string function_name(const std::string& program) { return "_" + program; }

}  // namespace

Manual manual_of_ruedarun(const std::string& version) {
  CLI::App app;
  CommandLine line;
  make_app(&app, &line);
  Manual manual{.program = "ruedarun",
                .version = version,
                .summary = "starts the ranks of a distributed program and looks after them",
                .starts_command = true};
  std::istringstream text(app.get_description());
  for (std::string words; std::getline(text, words);) manual.paragraphs.push_back(words);
  for (const CLI::Option* option : app.get_options()) {
    ManualOption found;
    for (const std::string& name : option->get_snames()) found.spellings.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) found.spellings.push_back("--" + name);
    const std::string one_dash = with_one_dash(found.spellings.back());
    if (!one_dash.empty()) found.spellings.push_back(one_dash);
    found.takes_value = option->get_expected_max() > 0 && option->get_items_expected_max() > 0 &&
                        !option->get_type_name().empty();
    found.help = option->get_description();
    found.takes_file = found.help.find("file") != std::string::npos ||
                       found.help.find("FOLDER") != std::string::npos;
    found.group = option->get_group();
    manual.options.push_back(std::move(found));
  }
  return manual;
}

Manual manual_of_rueda(const std::string& version) {
  Manual manual{.program = "rueda",
                .version = version,
                .summary = "answers questions about an installation and running jobs"};
  manual.paragraphs = {"rueda COMMAND [ARGUMENTS...]; rueda COMMAND --help says more."};
  for (const tools::Command& command : tools::kCommands)
    manual.commands.emplace_back(command.name, command.help);
  manual.options = {{{"-h", "--help"}, false, false, "Options", "print the commands"},
                    {{"-v", "--version"}, false, false, "Options", "print the version"}};
  return manual;
}

std::string man_page(const Manual& manual) {
  std::ostringstream out;
  out << ".TH " << manual.program << " 1 \"\" \"rueda " << manual.version << "\" \"rueda\"\n"
      << ".SH NAME\n"
      << manual.program << " \\- " << troff(manual.summary) << "\n.SH DESCRIPTION\n.nf\n";
  for (const std::string& line : manual.paragraphs) out << troff(line) << "\n";
  out << ".fi\n";
  if (!manual.commands.empty()) out << ".SH COMMANDS\n";
  for (const auto& [name, help] : manual.commands)
    out << ".TP\n.B " << name << "\n" << troff(help) << "\n";
  std::string group;
  for (const ManualOption& option : manual.options) {
    if (option.group != group) out << ".SH \"" << (group = option.group) << "\"\n";
    out << ".TP\n.B ";
    for (size_t i = 0; i < option.spellings.size(); ++i)
      out << (i == 0 ? "" : ", ") << troff(option.spellings[i]);
    out << (option.takes_value ? " \\fIVALUE\\fR" : "") << "\n" << troff(option.help) << "\n";
  }
  return out.str();
}

std::string bash_completion(const Manual& manual) {
  std::string words, files, values;
  for (const auto& [name, help] : manual.commands) words += name + " ";
  for (const ManualOption& option : manual.options) {
    for (const std::string& spelling : option.spellings) {
      words += spelling + " ";
      if (option.takes_value) {
        std::string& kind = option.takes_file ? files : values;
        kind += (kind.empty() ? "" : "|") + spelling;
      }
    }
  }
  if (!words.empty()) words.pop_back();
  const std::string function = function_name(manual.program);
  std::ostringstream out;
  out << function << "() {\n"
      << "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
      << "  case \"$before\" in\n";
  if (!files.empty())
    out << "    " << files << ") COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n";
  if (!values.empty()) out << "    " << values << ") COMPREPLY=(); return ;;\n";
  out << "  esac\n"
      << "  if [[ \"$word\" == -* || COMP_CWORD -eq 1 ]]; then\n"
      << "    COMPREPLY=($(compgen -W \"" << words << "\" -- \"$word\"))\n"
      << "  fi\n"
      << "  [[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen "
      << (manual.starts_command ? "-c " : "") << "-f -- \"$word\"))\n"
      << "}\ncomplete -o filenames -F " << function << " " << manual.program << "\n";
  return out.str();
}

std::string zsh_completion(const Manual& manual) {
  std::ostringstream out;
  out << "#compdef " << manual.program << "\n_arguments -s \\\n";
  for (const ManualOption& option : manual.options) {
    for (const std::string& spelling : option.spellings) {
      std::string spec = spelling + "[" + escaped(one_line(option.help), "[]:") + "]";
      if (option.takes_value) spec += option.takes_file ? ":file:_files" : ":value: ";
      out << "  " << shell_word(spec) << " \\\n";
    }
  }
  if (!manual.commands.empty()) {
    std::string names;
    for (const auto& [name, help] : manual.commands)
      names += (names.empty() ? "" : " ") + name + "\\:" + shell_word(escaped(help, ":()"));
    out << "  " << shell_word("1:command:((" + names + "))") << " \\\n";
  }
  out << (manual.starts_command ? "  '*::command:_normal'\n" : "  '*:file:_files'\n");
  return out.str();
}

std::string fish_completion(const Manual& manual) {
  std::ostringstream out;
  const std::string begin = "complete -c " + manual.program;
  for (const auto& [name, help] : manual.commands)
    out << begin << " -n __fish_use_subcommand -a " << name << " -d " << shell_word(help) << "\n";
  for (const ManualOption& option : manual.options) {
    out << begin;
    for (const std::string& spelling : option.spellings)
      out << (spelling.starts_with("--") ? " -l "
              : spelling.size() == 2     ? " -s "
                                         : " -o ")
          << spelling.substr(spelling.starts_with("--") ? 2 : 1);
    if (option.takes_value) out << (option.takes_file ? " -r -F" : " -x");
    out << " -d " << shell_word(one_line(option.help)) << "\n";
  }
  return out.str();
}

}  // namespace rueda::launcher
