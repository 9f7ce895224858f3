// "Did you mean ...?" for names that somebody has typed. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace rueda::launcher {

// Insertions, deletions and changes of bytes that make one of the other.
size_t edit_distance(const std::string& a, const std::string& b);

// The known name that is nearest, at most `most` edits away; empty: none is.
std::string nearest_name(const std::string& wrong, const std::vector<std::string>& known,
                         size_t most);

// "; did you mean --hostfile?", or nothing where no known name is within a third of its length.
std::string did_you_mean(const std::string& wrong, const std::vector<std::string>& known);

// One line for each variable of an environment ("NAME=value") that is no setting of ours, but whose
// name is nearly one's: it would have no effect, in silence.
std::vector<std::string> misspelled_settings(const std::vector<std::string>& environment);

}  // namespace rueda::launcher
